//! Host allocators: their lists are in the memory that they manage.

use std::alloc::{GlobalAlloc, Layout, System};

use super::allocator::Allocator;

const ALIGN: usize = 8;

/// One that is linked, and how it says what it has reserved.
pub(super) struct Host<A> {
    allocator: A,
    reserved: fn() -> Option<u64>,
}

/// That of the C library of the system.
pub(super) const GLIBC: Host<System> = Host { allocator: System, reserved: glibc_reserved };

fn glibc_reserved() -> Option<u64> {
    // SAFETY: it has no conditions.
    let info = unsafe { libc::mallinfo2() };
    Some((info.arena + info.hblkhd) as u64)
}

#[cfg(feature = "peers")]
pub(super) use linked::{JEMALLOC, MIMALLOC};

/// With what it has from the system.
#[cfg(feature = "snmalloc")]
pub(super) const SNMALLOC: Host<snmalloc_rs::SnMalloc> = Host {
    allocator: snmalloc_rs::SnMalloc,
    reserved: || Some(snmalloc_rs::SnMalloc::memory_stats().current_memory_usage as u64),
};

#[cfg(feature = "peers")]
mod linked {
    use std::ptr;

    use mimalloc::MiMalloc;
    use tikv_jemallocator::Jemalloc;

    use super::Host;

    pub(in super::super) const MIMALLOC: Host<MiMalloc> =
        Host { allocator: MiMalloc, reserved: mimalloc_reserved };
    pub(in super::super) const JEMALLOC: Host<Jemalloc> =
        Host { allocator: Jemalloc, reserved: jemalloc_reserved };

    /// What it has committed.
    fn mimalloc_reserved() -> Option<u64> {
        let mut committed = 0;
        let none = ptr::null_mut;
        // SAFETY: the one pointer is to a live local, and the others may be null.
        unsafe {
            libmimalloc_sys::mi_process_info(
                none(),
                none(),
                none(),
                none(),
                none(),
                &raw mut committed,
                none(),
                none(),
            );
        }
        Some(committed as u64)
    }

    /// What it has in memory as far as it knows: what it uses and has not given back.
    fn jemalloc_reserved() -> Option<u64> {
        let (mut epoch, mut resident) = (1_u64, 0_usize);
        let (mut epoch_size, mut resident_size) = (size_of::<u64>(), size_of::<usize>());
        // SAFETY: names end with zero, and the pointers are to live locals of the sizes given.
        let failed = unsafe {
            tikv_jemalloc_sys::mallctl(
                c"epoch".as_ptr(),
                (&raw mut epoch).cast(),
                &raw mut epoch_size,
                (&raw mut epoch).cast(),
                size_of::<u64>(),
            ) | tikv_jemalloc_sys::mallctl(
                c"stats.resident".as_ptr(),
                (&raw mut resident).cast(),
                &raw mut resident_size,
                ptr::null_mut(),
                0,
            )
        };
        (failed == 0).then_some(resident as u64)
    }
}

fn layout(size: usize) -> Result<Layout, &'static str> {
    Layout::from_size_align(size, ALIGN).map_err(|_| "too large")
}

impl<A: GlobalAlloc + Sync> Allocator for Host<A> {
    /// An address with its provenance exposed: pointers do not go from thread to thread.
    type Block = usize;
    type Error = &'static str;

    #[inline]
    fn allocate(&self, size: usize) -> Result<usize, &'static str> {
        // SAFETY: no size of a workload is 0.
        let pointer = unsafe { self.allocator.alloc(layout(size)?) };
        if pointer.is_null() { Err("out of memory") } else { Ok(pointer.expose_provenance()) }
    }

    #[inline]
    unsafe fn free(&self, block: usize, size: usize) -> Result<(), &'static str> {
        // SAFETY: the caller's contract.
        unsafe { self.allocator.dealloc(std::ptr::with_exposed_provenance_mut(block), layout(size)?) };
        Ok(())
    }

    fn pointer(&self, block: usize) -> Option<*mut u8> {
        Some(std::ptr::with_exposed_provenance_mut(block))
    }

    fn reserved(&self) -> Option<u64> {
        (self.reserved)()
    }
}
