//! Typed views of shared memory, and slices of private memory: nanoseconds per KiB.

use std::hint::black_box;
use std::process::ExitCode;

use umf::{Pool, View};
use umf_benches::bench::{self, Bench, Figures};
use umf_benches::measure::{Measured, batches};
use umf_benches::{Result, process};

/// The peer.
const SLICE: &str = "slice";
/// Bytes of the memory: fits the L1 cache, fits the L2 cache, fits neither.
const SIZES: [(&str, usize); 3] = [("4K", 4 << 10), ("64K", 64 << 10), ("16M", 16 << 20)];

fn main() -> ExitCode {
    bench::main(measure, process::produce)
}

fn measure(bench: &mut Bench) -> Result<()> {
    let pool = Pool::shared()?;
    for (name, size) in SIZES {
        measure_size(bench, &pool, name, size)?;
    }
    Ok(())
}

fn measure_size(bench: &mut Bench, pool: &Pool, name: &str, size: usize) -> Result<()> {
    let row = |operation: &str| (format!("view.{operation}.{name}"), size >> 10);
    let block = pool.allocate_aligned(size, 64)?;
    let numbers = block.view::<u64>()?;
    let slice = &mut vec![1_u64; numbers.len()][..];
    let [local, other] = &mut [vec![1_u64; numbers.len()], vec![1_u64; numbers.len()]];
    numbers.copy_from(slice);
    compare(
        bench,
        row("get"),
        || get(black_box(numbers)),
        || {
            let slice = black_box(&*slice);
            (0..slice.len()).fold(0_u64, |sum, index| sum.wrapping_add(slice[index]))
        },
    )?;
    compare(
        bench,
        row("iterate"),
        || numbers.iter().fold(0, u64::wrapping_add),
        || black_box(&*slice).iter().copied().fold(0, u64::wrapping_add),
    )?;
    let bytes = block.view::<u8>()?;
    let byte_slice = vec![1_u8; size];
    compare(
        bench,
        row("iterate.u8"),
        || bytes.iter().fold(0, u8::wrapping_add),
        || black_box(&byte_slice).iter().copied().fold(0, u8::wrapping_add),
    )?;
    compare(
        bench,
        row("set"),
        || set(black_box(numbers)),
        || {
            black_box(&mut *slice).iter_mut().zip(0..).for_each(|(word, value)| *word = value);
        },
    )?;
    compare(
        bench,
        row("fill"),
        || black_box(numbers).fill(black_box(7)),
        || {
            black_box(&mut *slice).fill(black_box(7));
        },
    )?;
    compare(
        bench,
        row("copy_to"),
        || numbers.copy_to(black_box(local)),
        || {
            black_box(&mut *other).copy_from_slice(black_box(slice));
        },
    )?;
    compare(
        bench,
        row("copy_from"),
        || numbers.copy_from(black_box(local)),
        || {
            black_box(&mut *slice).copy_from_slice(black_box(other));
        },
    )?;
    let floats = block.view::<f32>()?;
    let slice = vec![0.5_f32; floats.len()];
    floats.copy_from(&slice);
    compare(bench, row("sum.f32"), || floats.iter().sum::<f32>(), || black_box(&slice).iter().sum::<f32>())
}

/// Measures an operation of a view beside that of a slice, with `count` calls in a batch.
fn compare<A, B>(
    bench: &mut Bench,
    (name, count): (String, usize),
    mut ours: impl FnMut() -> A,
    mut peer: impl FnMut() -> B,
) -> Result<()> {
    bench.row(&name, |bench| {
        let ours = Measured::of(batches(bench.time, count, || {
            black_box(ours());
            Ok(())
        })?);
        let peer = Measured::of(batches(bench.time, count, || {
            black_box(peer());
            Ok(())
        })?);
        Ok(Figures::from(ours?).beside(SLICE, peer?))
    })
}

fn get(view: View<'_, u64>) -> u64 {
    (0..view.len()).fold(0, |sum, index| sum.wrapping_add(view.get(index).unwrap_or(0)))
}

fn set(view: View<'_, u64>) {
    for (index, value) in (0..view.len()).zip(0..) {
        // Succeeds: the index is within the view.
        let _ = view.set(index, value);
    }
}
