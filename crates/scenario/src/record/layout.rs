//! Line breaks of `record.json`.

use std::io;

/// JSON formatter with line breaks down to the entries of a list, each of which is one line.
#[derive(Default)]
pub(super) struct JsonLayout {
    depth: usize,
    empty: bool,
}

impl JsonLayout {
    /// Depth below which everything is on one line: `cells`, a cell, `summary`, an entry.
    const MAX_DEPTH: usize = 4;

    fn line<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        if self.depth > JsonLayout::MAX_DEPTH {
            return Ok(());
        }
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(b"  "))
    }

    fn open<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        let inline = self.empty || self.depth > JsonLayout::MAX_DEPTH;
        self.depth -= 1;
        self.empty = false;
        if !inline {
            self.line(out)?;
        }
        out.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        let separator: &[u8] = match (first, self.depth > JsonLayout::MAX_DEPTH) {
            (true, _) => b"",
            (false, true) => b", ",
            (false, false) => b",",
        };
        out.write_all(separator)?;
        self.line(out)
    }
}

impl serde_json::ser::Formatter for JsonLayout {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}
