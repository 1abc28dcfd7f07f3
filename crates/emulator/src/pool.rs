//! Pool of frame buffers in a few sizes. The pool grows on demand up to a limit.

/// Lengths of buffers, in bytes: acknowledgments, full Ethernet frames, jumbo frames.
const LENGTHS: [usize; 3] = [256, 2048, 16_384];

/// Pool of frame buffers.
#[derive(Debug)]
pub struct Pool {
    free: [Vec<Box<[u8]>>; LENGTHS.len()],
    /// Bytes of all buffers, allocated or free.
    bytes: usize,
    limit: usize,
}

/// Error of buffering a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferError {
    /// The pool has reached its limit.
    Exhausted,
    /// The frame is longer than the largest buffer.
    TooLong,
}

impl Pool {
    /// Creates a pool that grows up to `limit` bytes.
    pub fn new(limit: usize) -> Pool {
        Pool { free: Default::default(), bytes: 0, limit }
    }

    /// Returns a buffer that begins with a copy of this frame.
    pub fn allocate(&mut self, frame: &[u8]) -> Result<Box<[u8]>, BufferError> {
        let class = LENGTHS.iter().position(|length| *length >= frame.len()).ok_or(BufferError::TooLong)?;
        let mut buffer = match self.free[class].pop() {
            Some(buffer) => buffer,
            None if self.bytes + LENGTHS[class] <= self.limit => {
                self.bytes += LENGTHS[class];
                vec![0; LENGTHS[class]].into()
            }
            None => return Err(BufferError::Exhausted),
        };
        buffer[..frame.len()].copy_from_slice(frame);
        Ok(buffer)
    }

    /// Returns a buffer to the pool.
    pub fn release(&mut self, buffer: Box<[u8]>) {
        if let Some(class) = LENGTHS.iter().position(|length| *length == buffer.len()) {
            self.free[class].push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_grows_to_its_limit_and_reuses_buffers() {
        let mut pool = Pool::new(256 + 2048);
        let small = pool.allocate(&[1; 60]).unwrap();
        let large = pool.allocate(&[2; 1514]).unwrap();
        assert_eq!((small[59], large[1513]), (1, 2));
        assert_eq!(pool.allocate(&[3; 60]), Err(BufferError::Exhausted));
        assert_eq!(pool.allocate(&[0; LENGTHS[2] + 1]), Err(BufferError::TooLong));
        pool.release(small);
        assert_eq!(pool.allocate(&[4; 256]).unwrap()[..], [4; 256]);
    }
}
