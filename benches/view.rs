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
        let block = pool.allocate_aligned(size, 64)?;
        let numbers = block.view::<u64>()?;
        let slice = &mut vec![1_u64; numbers.len()][..];
        let [local, other] = &mut [vec![1_u64; numbers.len()], vec![1_u64; numbers.len()]];
        numbers.copy_from(slice);
        let mut row = |operation: &str, ours: &mut dyn FnMut(), peer: &mut dyn FnMut()| {
            bench.row(&format!("view.{operation}.{name}"), |bench| {
                let time = |run: &mut dyn FnMut()| {
                    Measured::of(batches(bench.time, size >> 10, || {
                        run();
                        Ok(())
                    })?)
                };
                Ok(Figures::from(time(ours)?).beside(SLICE, time(peer)?))
            })
        };
        row(
            "get",
            &mut || {
                black_box(get(black_box(numbers)));
            },
            &mut || {
                let slice = black_box(&*slice);
                black_box((0..slice.len()).fold(0_u64, |sum, index| sum.wrapping_add(slice[index])));
            },
        )?;
        row(
            "iterate",
            &mut || {
                black_box(numbers.iter().fold(0, u64::wrapping_add));
            },
            &mut || {
                black_box(black_box(&*slice).iter().copied().fold(0, u64::wrapping_add));
            },
        )?;
        let bytes = block.view::<u8>()?;
        let byte_slice = vec![1_u8; size];
        row(
            "iterate.u8",
            &mut || {
                black_box(bytes.iter().fold(0, u8::wrapping_add));
            },
            &mut || {
                black_box(black_box(&byte_slice).iter().copied().fold(0, u8::wrapping_add));
            },
        )?;
        row("set", &mut || set(black_box(numbers)), &mut || {
            black_box(&mut *slice).iter_mut().zip(0..).for_each(|(word, value)| *word = value);
        })?;
        row("fill", &mut || black_box(numbers).fill(black_box(7)), &mut || {
            black_box(&mut *slice).fill(black_box(7));
        })?;
        row(
            "copy_to",
            &mut || {
                black_box(numbers.copy_to(black_box(local)));
            },
            &mut || {
                black_box(&mut *other).copy_from_slice(black_box(slice));
            },
        )?;
        row(
            "copy_from",
            &mut || {
                black_box(numbers.copy_from(black_box(local)));
            },
            &mut || {
                black_box(&mut *slice).copy_from_slice(black_box(other));
            },
        )?;
        let floats = block.view::<f32>()?;
        let slice = vec![0.5_f32; floats.len()];
        floats.copy_from(&slice);
        row(
            "sum.f32",
            &mut || {
                black_box(floats.iter().sum::<f32>());
            },
            &mut || {
                black_box(black_box(&slice).iter().sum::<f32>());
            },
        )?;
    }
    Ok(())
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
