//! Return of unused memory to the system.

#![allow(unsafe_code)]

/// Returns free whole pages to the system, for use after a large structure was built from a larger one. It
/// walks over all free memory, which takes some milliseconds per 100 MB.
pub fn release_unused() {
    // SAFETY: it affects only memory the allocator holds as free.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
