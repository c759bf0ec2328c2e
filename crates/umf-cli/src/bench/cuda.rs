//! CUDA memory: a pool beside the driver's own, handles beside the driver's, and what a copy from imported memory carries.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use umf::cuda::driver_api::{Api, CUcontext, CUipcMemHandle, CUstream, Failure as Refused};
use umf::cuda::{CudaMemory, CudaProvider};
use umf::{Handle, Pool};

use super::Bench;
use super::measure::{self, Measured, told};
use super::producer::Producer;
use crate::failure::Failure;
use crate::timing::nanoseconds;

/// Allocations of one batch.
const BATCH: u64 = 64;
/// Handles that are opened.
const HANDLES: usize = 16;
/// Bytes of a block that has a region of its own in every pool.
const REGION: usize = 16 << 20;

/// The driver, with the context of the provider current in this thread, and a stream.
struct Device {
    api: &'static Api,
    stream: CUstream,
}

impl Device {
    fn enter(provider: &CudaProvider) -> Result<Device, Failure> {
        let api = provider.driver().api();
        let mut stream = CUstream::NULL;
        // SAFETY: the provider's context, which it keeps; a place for the answer.
        unsafe {
            api.cuCtxPushCurrent(CUcontext(provider.context())).map_err(told)?;
            api.cuStreamCreate(&raw mut stream, umf::cuda::driver_api::CU_STREAM_NON_BLOCKING)
                .map_err(told)?;
        }
        Ok(Device { api, stream })
    }

    fn wait(&self) -> Result<(), Refused> {
        // SAFETY: a stream of ours.
        unsafe { self.api.cuStreamSynchronize(self.stream) }
    }

    /// Allocates and frees in the stream.
    fn in_stream(&self, size: usize) -> Result<u64, Refused> {
        for _ in 0..BATCH {
            let mut address = 0;
            // SAFETY: a place for the answer; freed once.
            unsafe {
                self.api.cuMemAllocAsync(&raw mut address, size, self.stream)?;
                self.api.cuMemFreeAsync(address, self.stream)?;
            }
        }
        Ok(BATCH)
    }

    /// Allocates and frees.
    fn at_once(&self, size: usize) -> Result<u64, Refused> {
        for _ in 0..BATCH {
            let mut address = 0;
            // SAFETY: as above.
            unsafe {
                self.api.cuMemAlloc(&raw mut address, size)?;
                self.api.cuMemFree(address)?;
            }
        }
        Ok(BATCH)
    }

    /// Opens and closes a handle of the driver's.
    fn open(&self, handle: &Handle) -> Result<f64, Refused> {
        let mut bytes = CUipcMemHandle { reserved: [0; 64] };
        let native = handle.native();
        bytes.reserved[..native.len().min(64)].copy_from_slice(&native[..native.len().min(64)]);
        let mut address = 0;
        // SAFETY: a place for the answer; the driver looks at the bytes; closed once.
        let (time, opened) =
            nanoseconds(|| unsafe { self.api.cuIpcOpenMemHandle(&raw mut address, bytes, 1) });
        opened?;
        // SAFETY: as above.
        unsafe { self.api.cuIpcCloseMemHandle(address) }?;
        Ok(time)
    }

    /// Bytes per nanosecond of copies between two places of device memory.
    fn copy(&self, to: u64, from: u64, size: usize, times: u32) -> Result<f64, Refused> {
        self.wait()?;
        let begun = Instant::now();
        for _ in 0..times {
            // SAFETY: device memory of so many bytes at both, which stays until the stream is done.
            unsafe { self.api.cuMemcpyAsync(to, from, size, self.stream) }?;
        }
        self.wait()?;
        Ok(f64::from(times) * size as f64 / begun.elapsed().as_nanos() as f64)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut popped = CUcontext(std::ptr::null_mut::<c_void>());
        // SAFETY: made and pushed in `enter`.
        unsafe {
            let _ = self.api.cuStreamDestroy(self.stream);
            let _ = self.api.cuCtxPopCurrent(&raw mut popped);
        }
    }
}

/// Measures all rows.
///
/// # Errors
/// There is no driver or device, or what they refuse.
pub(super) fn measure(bench: &mut Bench) -> Result<(), Failure> {
    let provider = CudaProvider::builder().memory(CudaMemory::Virtual).build().map_err(told)?;
    let device = Device::enter(&provider)?;
    let pool = Pool::builder().provider(provider).build().map_err(told)?;
    allocation(bench, &pool, &device)?;
    let mut producer = Producer::start()?;
    handles(bench, &mut producer, &device)?;
    bandwidth(bench, &mut producer, &pool, &device)
}

fn allocation(bench: &mut Bench, pool: &Pool, device: &Device) -> Result<(), Failure> {
    for (name, size) in [("256B", 256), ("64KiB", 64 << 10), ("1MiB", 1 << 20)] {
        let name = format!("cuda.pool.{name}");
        bench.rows.begin(&name);
        let ours = measure::one(bench.time, || -> umf::Result<u64> {
            for _ in 0..BATCH {
                drop(pool.allocate(size)?);
            }
            Ok(BATCH)
        })?;
        let in_stream = measure::one(bench.time, || device.in_stream(size));
        device.wait().map_err(told)?;
        let at_once = measure::one(bench.time, || device.at_once(size))?;
        // Older devices have no allocation in streams.
        if let Ok(in_stream) = in_stream {
            bench.rows.add(&name, ours, Some(("cudaMallocAsync", in_stream)))?;
        }
        bench.rows.add(&format!("{name}.sync"), ours, Some(("cudaMalloc", at_once)))?;
    }
    Ok(())
}

/// Nanoseconds until a handle is open, with closing it left out.
fn opening(handle: &Handle) -> umf::Result<f64> {
    let (time, opened) = nanoseconds(|| umf::open(handle));
    opened.map(|_| time)
}

fn handles(bench: &mut Bench, producer: &mut Producer, device: &Device) -> Result<(), Failure> {
    let regions = producer.cuda("virtual", HANDLES, REGION)?;
    let native = producer.cuda("device", HANDLES, REGION)?;
    let importer = umf::importer().map_err(told)?;
    let first = |handle: &Handle| {
        let time = opening(handle);
        importer.evict_idle();
        time
    };
    // The context, the ledger and the socket are there from here on.
    first(&regions[0]).map_err(told)?;
    let time = bench.time / 2;
    let mut next = regions.iter().cycle();
    bench.rows.begin("cuda.open.first");
    let cold = measure::singly(time, || next.next().map_or(Ok(0.0), first))?;
    let mut next = native.iter().cycle();
    let legacy = measure::singly(time, || next.next().map_or(Ok(0.0), first))?;
    let mut next = native.iter().cycle();
    let peer = measure::singly(time, || next.next().map_or(Ok(0.0), |handle| device.open(handle)))?;
    bench.rows.add("cuda.open.first", cold, Some(("cudaIpcOpenMemHandle", peer)))?;
    bench.rows.add("cuda.open.first.device", legacy, Some(("cudaIpcOpenMemHandle", peer)))?;
    bench.rows.begin("cuda.open.cached");
    let keep = umf::open(&regions[0]).map_err(told)?;
    let cached = measure::one(time, || -> umf::Result<u64> {
        for _ in 0..BATCH {
            drop(umf::open(&regions[0])?);
        }
        Ok(BATCH)
    })?;
    drop(keep);
    bench.rows.add("cuda.open.cached", cached, Some(("cudaIpcOpenMemHandle", peer)))?;
    // Other blocks of a region that is open: what an arena is here.
    let blocks = producer.cuda("virtual", 2 * HANDLES, 4096)?;
    let keep = umf::open(&blocks[0]).map_err(told)?;
    let begun = blocks[1..].iter().map(opening).collect::<umf::Result<Vec<f64>>>().map_err(told)?;
    drop(keep);
    bench.rows.add("cuda.open.same_region", Measured::of(begun)?, Some(("cudaIpcOpenMemHandle", peer)))?;
    importer.evict_idle();
    Ok(())
}

fn bandwidth(
    bench: &mut Bench,
    producer: &mut Producer,
    pool: &Pool,
    device: &Device,
) -> Result<(), Failure> {
    let (size, times) = if bench.quick { (REGION, 2) } else { (256 << 20, 16) };
    for memory in ["virtual", "device"] {
        let name = format!("cuda.copy.{memory}");
        bench.rows.begin(&name);
        let handle = producer.cuda(memory, 1, size)?;
        let mapping = umf::open(&handle[0]).map_err(told)?;
        let (to, from) = (pool.allocate(size).map_err(told)?, pool.allocate(size).map_err(told)?);
        let (to, from, import) = (to.address().value(), from.address().value(), mapping.address().value());
        let (mut ours, mut local) = (Vec::new(), Vec::new());
        device.copy(to, import, size, times).map_err(told)?;
        let end = Instant::now() + bench.time.max(Duration::from_millis(1));
        // In turn, so that both see the same clock of the device.
        while ours.len() < 5 || Instant::now() < end {
            local.push(device.copy(to, from, size, times).map_err(told)?);
            ours.push(device.copy(to, import, size, times).map_err(told)?);
        }
        let local = Measured::of(local)?;
        bench.rows.push(&name, "GB/s", Measured::of(ours)?, Some(("local copy", local)))?;
    }
    Ok(())
}
