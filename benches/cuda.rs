//! CUDA memory: a pool beside the driver's allocator, handles beside the driver's handles, and
//! copies from imported memory.

use std::ffi::c_void;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use umf::cuda::driver_api::{Api, CU_STREAM_NON_BLOCKING, CUcontext, CUipcMemHandle, CUstream, Failure};
use umf::cuda::{CudaMemory, CudaProvider, Driver};
use umf::{Handle, Importer, Pool};
use umf_benches::bench::{self, Bench, Figures};
use umf_benches::measure::{Measured, batches, nanoseconds, singly};
use umf_benches::process::{self, Memory, Producer};
use umf_benches::{Error, Result};

/// Allocations of one batch.
const BATCH: usize = 64;
/// Number of opened handles.
const HANDLES: usize = 16;
/// Bytes of a block that has a region of its own in every pool.
const REGION: usize = 16 << 20;

fn main() -> ExitCode {
    if bench::is_test() && Driver::load_error(None).is_some() {
        return with_software_driver().map_or_else(|error| bench::fail(&error), |()| ExitCode::SUCCESS);
    }
    bench::main(measure, process::produce)
}

/// Executes this program again, with a folder in the linker's path in which `libcuda.so.1` is the
/// software driver.
fn with_software_driver() -> Result<()> {
    const PATH: &str = "LD_LIBRARY_PATH";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-soft");
    if umf_os::environment::variable(PATH).is_some_and(|path| path == *folder.as_os_str()) {
        return Err("the software driver cannot be loaded".into());
    }
    fs::create_dir_all(&folder)?;
    let _ = symlink(std::env::current_exe()?.with_file_name("libcuda_soft.so"), folder.join("libcuda.so.1"));
    Err(Command::new("/proc/self/exe").args(std::env::args().skip(1)).env(PATH, folder).exec().into())
}

fn measure(bench: &mut Bench) -> Result<()> {
    let provider = CudaProvider::builder().memory(CudaMemory::Virtual).build()?;
    let device = Device::enter(&provider)?;
    let pool = Pool::builder().provider(provider).build()?;
    allocation(bench, &pool, &device)?;
    let mut producer = Producer::start()?;
    handles(bench, &mut producer, &device)?;
    bandwidth(bench, &mut producer, &pool, &device)
}

/// The driver, with the context of the provider current in this thread, and a stream.
struct Device {
    api: &'static Api,
    stream: CUstream,
}

impl Device {
    fn enter(provider: &CudaProvider) -> Result<Device> {
        let api = provider.driver().api();
        let mut stream = CUstream::NULL;
        // SAFETY: the provider keeps its context alive; the pointer to the result is valid.
        unsafe {
            api.cuCtxPushCurrent(CUcontext(provider.context()))?;
            api.cuStreamCreate(&raw mut stream, CU_STREAM_NON_BLOCKING)?;
        }
        Ok(Device { api, stream })
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: a stream of this device.
        Ok(unsafe { self.api.cuStreamSynchronize(self.stream) }?)
    }

    /// Allocates and frees, in the stream or synchronously.
    fn allocate_and_free(&self, size: usize, in_stream: bool) -> std::result::Result<(), Failure> {
        let mut address = 0;
        // SAFETY: the pointer to the result is valid; the memory is freed once.
        unsafe {
            if in_stream {
                self.api.cuMemAllocAsync(&raw mut address, size, self.stream)?;
                self.api.cuMemFreeAsync(address, self.stream)
            } else {
                self.api.cuMemAlloc(&raw mut address, size)?;
                self.api.cuMemFree(address)
            }
        }
    }

    /// Measures opening a driver handle, in nanoseconds.
    fn open(&self, handle: &Handle) -> Result<f64> {
        let mut bytes = CUipcMemHandle { reserved: [0; 64] };
        let native = handle.native();
        let length = native.len().min(64);
        bytes.reserved[..length].copy_from_slice(&native[..length]);
        let mut address = 0;
        // SAFETY: the pointer to the result is valid; the driver checks the bytes; closed once.
        unsafe {
            let (time, opened) = nanoseconds(|| self.api.cuIpcOpenMemHandle(&raw mut address, bytes, 1));
            opened?;
            self.api.cuIpcCloseMemHandle(address)?;
            Ok(time)
        }
    }

    /// Measures copies between two addresses of device memory, in nanoseconds per byte.
    fn copy(&self, to: u64, from: u64, size: usize, times: usize) -> Result<f64> {
        self.wait()?;
        let start = Instant::now();
        for _ in 0..times {
            // SAFETY: both are live device memory of `size` bytes until the stream is synchronized.
            unsafe { self.api.cuMemcpyAsync(to, from, size, self.stream) }?;
        }
        self.wait()?;
        Ok(start.elapsed().as_nanos() as f64 / (times * size) as f64)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut popped = CUcontext(std::ptr::null_mut::<c_void>());
        // SAFETY: created and pushed in `enter`.
        unsafe {
            let _ = self.api.cuStreamDestroy(self.stream);
            let _ = self.api.cuCtxPopCurrent(&raw mut popped);
        }
    }
}

fn allocation(bench: &mut Bench, pool: &Pool, device: &Device) -> Result<()> {
    for (name, size) in [("256B", 256), ("64KiB", 64 << 10), ("1MiB", 1 << 20)] {
        let driver = |bench: &Bench, in_stream| {
            let values = batches(bench.time, BATCH, || {
                Ok((0..BATCH).try_for_each(|_| device.allocate_and_free(size, in_stream))?)
            });
            device.wait()?;
            Measured::of(values?)
        };
        let ours = |bench: &Bench| {
            Measured::of(batches(bench.time, BATCH, || {
                (0..BATCH).try_for_each(|_| pool.allocate(size).map(drop)).map_err(Error::from)
            })?)
        };
        // Older devices lack stream-ordered allocation.
        if device.allocate_and_free(size, true).is_ok() {
            bench.row(&format!("cuda.pool.{name}"), |bench| {
                Ok(Figures::from(ours(bench)?).beside("cudaMallocAsync", driver(bench, true)?))
            })?;
        }
        bench.row(&format!("cuda.pool.{name}.sync"), |bench| {
            Ok(Figures::from(ours(bench)?).beside("cudaMalloc", driver(bench, false)?))
        })?;
    }
    Ok(())
}

/// Measures opening a handle, in nanoseconds. Closing it is not timed.
fn opening(handle: &Handle) -> Result<f64> {
    let (time, opened) = nanoseconds(|| umf::open(handle));
    opened?;
    Ok(time)
}

/// Measures opening a handle that is not cached.
fn first_opening(importer: &Importer, handle: &Handle) -> Result<f64> {
    let time = opening(handle);
    importer.evict_idle();
    time
}

fn handles(bench: &mut Bench, producer: &mut Producer, device: &Device) -> Result<()> {
    let kind = |kind: &str| Memory::Cuda(kind.to_owned());
    let regions = producer.handles(kind("virtual"), HANDLES, REGION)?;
    let native = producer.handles(kind("device"), HANDLES, REGION)?;
    let importer = umf::importer()?;
    // Opens the context, the ledger and the socket.
    first_opening(importer, &regions[0])?;
    let time = bench.time / 2;
    let each = |handles: &[Handle], open: &dyn Fn(&Handle) -> Result<f64>| {
        let mut next = handles.iter().cycle();
        Measured::of(singly(time, || next.next().map_or(Err("no handles".into()), open))?)
    };
    let peer = each(&native, &|handle| device.open(handle))?;
    let mut row = |name: &str, measure: &dyn Fn() -> Result<Measured>| {
        bench.row(name, |_| Ok(Figures::from(measure()?).beside("cudaIpcOpenMemHandle", peer)))
    };
    row("cuda.open.first", &|| each(&regions, &|handle| first_opening(importer, handle)))?;
    row("cuda.open.first.device", &|| each(&native, &|handle| first_opening(importer, handle)))?;
    row("cuda.open.cached", &|| {
        let _kept = umf::open(&regions[0])?;
        Measured::of(batches(time, BATCH, || {
            (0..BATCH).try_for_each(|_| umf::open(&regions[0]).map(drop)).map_err(Error::from)
        })?)
    })?;
    // Other blocks of a region that is open: an arena of device memory.
    let blocks = producer.handles(kind("virtual"), 2 * HANDLES, 4096)?;
    row("cuda.open.same_region", &|| {
        let _kept = umf::open(&blocks[0])?;
        Measured::of(blocks[1..].iter().map(opening).collect::<Result<_>>()?)
    })?;
    importer.evict_idle();
    Ok(())
}

fn bandwidth(bench: &mut Bench, producer: &mut Producer, pool: &Pool, device: &Device) -> Result<()> {
    let (size, times) = if bench.quick { (REGION, 2) } else { (256 << 20, 16) };
    for memory in ["virtual", "device"] {
        bench.row_in("GB/s", &format!("cuda.copy.{memory}"), |bench| {
            let handle = producer.handles(Memory::Cuda(memory.to_owned()), 1, size)?;
            let mapping = umf::open(&handle[0])?;
            let (to, from) = (pool.allocate(size)?, pool.allocate(size)?);
            let (to, from) = (to.address().value(), from.address().value());
            let import = mapping.address().value();
            device.copy(to, import, size, times)?;
            let (mut ours, mut local) = (Vec::new(), Vec::new());
            let end = Instant::now() + bench.time;
            // In turns, so that both see the same clock of the device.
            while ours.len() < 5 || Instant::now() < end {
                local.push(device.copy(to, from, size, times)?);
                ours.push(device.copy(to, import, size, times)?);
            }
            let figures = Figures::from(Measured::of(ours)?).beside("local copy", Measured::of(local)?);
            Ok(figures.map(|nanoseconds| 1.0 / nanoseconds))
        })?;
    }
    Ok(())
}
