//! The front's memory: the system's allocator, with large pages under large tables.
//!
//! The tables of a checkpoint with 50,000 tensors have 40 MB, which the system hands out in pages of 4 KiB: 10,000
//! faults, a third of the time that a listing takes. Whatever has a mebibyte or more is laid out for pages of 2 MiB, and
//! the system is asked for them; it may say no.

#![allow(
    unsafe_code,
    reason = "a global allocator is unsafe to implement, and no crate does this without a start of its own"
)]

use std::alloc::{GlobalAlloc, Layout, System};

/// The size of a large page on x86-64, and mostly on ARM.
const PAGE_BYTES: usize = 2 << 20;

/// From this size on a table gets large pages: half a page, so that at most as much as it has is touched in vain.
const LARGE_BYTES: usize = PAGE_BYTES / 2;

/// The system's allocator, with large pages for what is large.
#[derive(Debug)]
pub struct LargePages;

/// What is asked of the system for a large layout: whole pages, where pages start. `None` for what is not large, and
/// what is too large to be rounded up.
fn whole_pages(layout: Layout) -> Option<Layout> {
    if layout.size() < LARGE_BYTES || layout.align() > PAGE_BYTES {
        return None;
    }
    let size = layout.size().checked_next_multiple_of(PAGE_BYTES)?;
    Layout::from_size_align(size, PAGE_BYTES).ok()
}

#[cold]
fn advise(pages: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    if !pages.is_null() {
        // SAFETY: the range was just allocated, whole pages of it, and the advice changes no byte in it.
        let advised =
            unsafe { rustix::mm::madvise(pages.cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
        // A system without large pages goes on with small ones.
        let _ = advised;
    }
}

// SAFETY: every block comes from `System` and goes back to it with the layout that it was allocated with, which
// `whole_pages` works out from the caller's layout alone. It is at least as large and as aligned as what was asked for.
unsafe impl GlobalAlloc for LargePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(pages) = whole_pages(layout) else {
            // SAFETY: the caller's layout, unchanged.
            return unsafe { System.alloc(layout) };
        };
        // SAFETY: its size is not zero.
        let block = unsafe { System.alloc(pages) };
        advise(block, pages.size());
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: allocated above, with this very layout.
        unsafe { System.dealloc(block, whole_pages(layout).unwrap_or(layout)) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let grown = Layout::from_size_align(new_size, layout.align());
        let Ok(grown) = grown else {
            return std::ptr::null_mut();
        };
        match (whole_pages(layout), whole_pages(grown)) {
            // SAFETY: not large before or after: the caller's own arguments for `System`'s block.
            (None, None) => unsafe { System.realloc(block, layout, new_size) },
            // Room that rounding up made already.
            (Some(old), Some(new)) if old == new => block,
            // SAFETY: the new block does not overlap the old one, which has `layout.size()` bytes and is given back with
            // its own layout.
            _ => unsafe {
                let moved = self.alloc(grown);
                if !moved.is_null() {
                    let kept = layout.size().min(new_size);
                    std::ptr::copy_nonoverlapping(block, moved, kept);
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_bytes_through_every_size() {
        let sizes = [
            10,
            LARGE_BYTES - 1,
            LARGE_BYTES,
            PAGE_BYTES,
            PAGE_BYTES + 1,
            5 * PAGE_BYTES,
            100,
        ];
        let mut layout = Layout::from_size_align(16, 8).unwrap();
        // SAFETY: as callers of an allocator do, in bounds of what was asked for.
        unsafe {
            let mut block = LargePages.alloc(layout);
            block.write_bytes(7, layout.size());
            for size in sizes {
                block = LargePages.realloc(block, layout, size);
                assert!(!block.is_null());
                let kept = std::slice::from_raw_parts(block, size.min(layout.size()));
                assert!(kept.iter().all(|byte| *byte == 7), "{size}");
                block.write_bytes(7, size);
                layout = Layout::from_size_align(size, 8).unwrap();
                if size >= LARGE_BYTES {
                    assert_eq!(block.addr() % PAGE_BYTES, 0);
                }
            }
            LargePages.dealloc(block, layout);
        }
    }

    #[test]
    fn zeroed_blocks_are_zero() {
        let layout = Layout::from_size_align(3 * PAGE_BYTES, 64).unwrap();
        // SAFETY: as callers of an allocator do.
        unsafe {
            let block = LargePages.alloc_zeroed(layout);
            let bytes = std::slice::from_raw_parts(block, layout.size());
            assert!(bytes.iter().all(|byte| *byte == 0));
            LargePages.dealloc(block, layout);
        }
    }

    #[test]
    fn what_cannot_be_rounded_up_is_left_as_it_is() {
        let most = isize::MAX.unsigned_abs() - 7;
        assert_eq!(whole_pages(Layout::from_size_align(most, 8).unwrap()), None);
        assert_eq!(
            whole_pages(Layout::from_size_align(LARGE_BYTES - 1, 8).unwrap()),
            None
        );
    }
}
