//! What the machine can do at all: a line that moves, bytes out of a mapping, bytes by the kernel.

use std::sync::atomic::{AtomicU64, Ordering};

use umf::VolatileSlice;
use umf::ipc::VolatileMemory;

use super::super::measure::told;
use super::peer::Buffer;
use crate::failure::Failure;
use crate::sys::remote;

/// Writes all of it.
pub(super) fn fill(memory: &VolatileSlice<'_>, value: u8) {
    let line = [value; 4096];
    let mut offset = 0;
    while let Ok(rest) = memory.offset(offset)
        && !rest.is_empty()
    {
        rest.copy_from(&line[..]);
        offset += line.len().min(rest.len());
    }
}

/// Bytes out of a mapping into memory of a pool.
pub(super) fn copy(from: &VolatileSlice<'_>, into: &mut Buffer<'_>) -> Result<(), Failure> {
    let Buffer::Pool(memory) = into else { return Err(told("it is no memory of a pool")) };
    from.copy_to_volatile_slice(memory.slice());
    Ok(())
}

/// Bytes of another process, by the kernel, into this one's own.
pub(super) fn read(pid: u32, address: u64, into: &mut Buffer<'_>) -> Result<(), Failure> {
    let Buffer::Plain(into) = into else { return Err(told("it is not the process's own memory")) };
    match remote::read(pid.cast_signed(), address, into) {
        Ok(count) if count == into.len() => Ok(()),
        Ok(count) => Err(told(format!("process_vm_readv read {count} bytes"))),
        Err(errno) => Err(told(errno)),
    }
}

fn words<'m>(memory: &'m VolatileSlice<'_>) -> Result<[&'m AtomicU64; 2], Failure> {
    let word = |offset: usize| memory.get_atomic_ref::<AtomicU64>(offset).map_err(told);
    Ok([word(0)?, word(128)?])
}

/// Waits until a word has a value, without a rest: the fastest that there is.
fn wait_for(word: &AtomicU64, value: u64) -> Result<(), Failure> {
    for spins in 0_u64.. {
        if word.load(Ordering::Acquire) == value {
            return Ok(());
        }
        if spins > 1 << 14 {
            std::thread::yield_now();
        }
        if spins > 1 << 24 {
            break;
        }
    }
    Err(told("the other process does not throw the line back"))
}

/// Throws a line to the other process and back.
pub(super) fn throw(memory: &VolatileSlice<'_>, from: u64, count: u64) -> Result<(), Failure> {
    let [there, back] = words(memory)?;
    for number in from + 1..=from + count {
        there.store(number, Ordering::Release);
        wait_for(back, number)?;
    }
    Ok(())
}

/// The other end of [`throw`].
pub(super) fn throw_back(memory: &VolatileSlice<'_>, count: u64) -> Result<(), Failure> {
    let [there, back] = words(memory)?;
    for number in 1..=count {
        wait_for(there, number)?;
        back.store(number, Ordering::Release);
    }
    Ok(())
}
