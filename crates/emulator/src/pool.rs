//! The bytes of frames under way: buffers of a few sizes, lent out and taken back. Grows on
//! demand up to a bound, and says when it is exhausted.

/// Lengths of buffers: acknowledgements, full Ethernet frames, jumbo frames.
const LENGTHS: [usize; 3] = [256, 2048, 16_384];

/// Buffers for frames.
#[derive(Debug)]
pub struct Pool {
    free: [Vec<Box<[u8]>>; LENGTHS.len()],
    /// Bytes of all buffers, lent or free.
    bytes: usize,
    bound: usize,
}

/// Why a frame could not be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The pool has reached its bound.
    Exhausted,
    /// The frame is longer than any buffer.
    TooLong,
}

impl Pool {
    /// A pool that grows up to `bound` bytes.
    pub fn new(bound: usize) -> Pool {
        Pool { free: Default::default(), bytes: 0, bound }
    }

    /// A buffer that begins with this frame.
    pub fn keep(&mut self, frame: &[u8]) -> Result<Box<[u8]>, Refused> {
        let class = LENGTHS.iter().position(|length| *length >= frame.len()).ok_or(Refused::TooLong)?;
        let mut buffer = match self.free[class].pop() {
            Some(buffer) => buffer,
            None if self.bytes + LENGTHS[class] <= self.bound => {
                self.bytes += LENGTHS[class];
                vec![0; LENGTHS[class]].into()
            }
            None => return Err(Refused::Exhausted),
        };
        buffer[..frame.len()].copy_from_slice(frame);
        Ok(buffer)
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: Box<[u8]>) {
        if let Some(class) = LENGTHS.iter().position(|length| *length == buffer.len()) {
            self.free[class].push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_bound_and_takes_back() {
        let mut pool = Pool::new(256 + 2048);
        let small = pool.keep(&[1; 60]).unwrap();
        let large = pool.keep(&[2; 1514]).unwrap();
        assert_eq!((small[59], large[1513]), (1, 2));
        assert_eq!(pool.keep(&[3; 60]), Err(Refused::Exhausted));
        assert_eq!(pool.keep(&[0; LENGTHS[2] + 1]), Err(Refused::TooLong));
        pool.give(small);
        assert_eq!(pool.keep(&[4; 256]).unwrap()[..], [4; 256]);
    }
}
