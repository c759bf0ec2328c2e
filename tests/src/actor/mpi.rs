//! `umf-actor mpi SHIM PROVIDER`: a rank of an MPI job. Pairs of ranks exchange handles by
//! `MPI_Send`.

use std::ffi::{CStr, CString, c_int, c_void};

use umf::Pool;

use crate::Failure;
use crate::memory::{content, holds};

const SIZE: usize = 100_000;
const BLOCKS: u64 = 8;

type Begin = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, c_int, c_int) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
type End = unsafe extern "C" fn() -> c_int;

/// Functions of the library that tests build from `tests/mpi/shim.c`, and this rank.
struct Mpi {
    send: Send,
    receive: Receive,
    end: End,
    rank: c_int,
    ranks: c_int,
}

fn succeeded(call: &str, status: c_int) -> Result<(), Failure> {
    if status == 0 { Ok(()) } else { Err(Failure::new("Mpi", format!("{call} failed with {status}"))) }
}

impl Mpi {
    fn begin(shim: &str) -> Result<Self, Failure> {
        let path = CString::new(shim).unwrap();
        // MPI loads plugins that resolve symbols of MPI itself.
        // SAFETY: the test's own library.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if library.is_null() {
            return Err(Failure::new("Mpi", format!("{shim} cannot be loaded")));
        }
        let find = |name: &CStr| {
            // SAFETY: only the address is looked up.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() { Err(Failure::new("Mpi", format!("no {name:?}"))) } else { Ok(found) }
        };
        let (mut rank, mut ranks) = (0, 0);
        // SAFETY: the functions have these prototypes in tests/mpi/shim.c.
        unsafe {
            let begin = std::mem::transmute::<*mut c_void, Begin>(find(c"shim_begin")?);
            succeeded("MPI_Init", begin(&raw mut rank, &raw mut ranks))?;
            Ok(Self {
                send: std::mem::transmute::<*mut c_void, Send>(find(c"shim_send")?),
                receive: std::mem::transmute::<*mut c_void, Receive>(find(c"shim_receive")?),
                end: std::mem::transmute::<*mut c_void, End>(find(c"shim_end")?),
                rank,
                ranks,
            })
        }
    }

    fn send(&self, bytes: &[u8], to: c_int) -> Result<(), Failure> {
        let count = c_int::try_from(bytes.len()).unwrap();
        // SAFETY: the bytes are valid until the call returns.
        succeeded("MPI_Send", unsafe { (self.send)(bytes.as_ptr().cast(), count, to) })
    }

    fn receive<const N: usize>(&self, from: c_int) -> Result<[u8; N], Failure> {
        let mut bytes = [0; N];
        // SAFETY: the array has room for `N` bytes until the call returns.
        succeeded("MPI_Recv", unsafe {
            (self.receive)(bytes.as_mut_ptr().cast(), c_int::try_from(N).unwrap(), from)
        })?;
        Ok(bytes)
    }
}

/// Runs the rank and prints its result.
pub(crate) fn rank(shim: &str, provider: &str) -> std::process::ExitCode {
    match run(shim, provider) {
        Ok(text) => {
            println!("{text}");
            std::process::ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("failed: {failure}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(shim: &str, provider: &str) -> Result<String, Failure> {
    let mpi = Mpi::begin(shim)?;
    // Even ranks produce for the next rank, odd ranks consume.
    let (rank, peer) = (mpi.rank, mpi.rank ^ 1);
    if mpi.ranks % 2 != 0 {
        return Err(Failure::new("Mpi", "an odd number of ranks"));
    }
    if rank < peer {
        produce(&mpi, peer, provider)?
    } else {
        consume(&mpi, peer)?
    }
    // SAFETY: no MPI call follows.
    succeeded("MPI_Finalize", unsafe { (mpi.end)() })?;
    Ok(format!("rank {rank} is done"))
}

fn produce(mpi: &Mpi, peer: c_int, provider: &str) -> Result<(), Failure> {
    let pool = Pool::over(provider)?;
    for number in 0..BLOCKS {
        let block = pool.allocate(SIZE)?;
        block.write(0, &content(SIZE, number))?;
        mpi.send(&block.handle()?.to_bytes(), peer)?;
        let [_answered] = mpi.receive(peer)?;
        let mut bytes = vec![0; SIZE];
        block.read(0, &mut bytes)?;
        if !holds(&bytes, number + 100) {
            return Err(Failure::new("WrongContent", format!("block {number} after the consumer wrote it")));
        }
        drop(block);
        mpi.send(&[1], peer)?;
        let [_closed] = mpi.receive(peer)?;
    }
    Ok(())
}

fn consume(mpi: &Mpi, peer: c_int) -> Result<(), Failure> {
    let importer = umf::importer()?;
    for number in 0..BLOCKS {
        let handle: [u8; umf::ipc::HANDLE_SIZE] = mpi.receive(peer)?;
        let mapping = importer.open_bytes(&handle, umf::Access::ReadWrite)?;
        let mut bytes = vec![0; SIZE];
        mapping.read(0, &mut bytes)?;
        if !holds(&bytes, number) {
            return Err(Failure::new("WrongContent", format!("block {number}")));
        }
        mapping.write(0, &content(SIZE, number + 100))?;
        mpi.send(&[1], peer)?;
        let [_freed] = mpi.receive(peer)?;
        let is_stale = matches!(
            importer.open_bytes(&handle, umf::Access::ReadWrite),
            Err(umf::ipc::Error::Stale { .. })
        );
        if mapping.is_current() || !is_stale {
            return Err(Failure::new("NotStale", format!("block {number}")));
        }
        drop(mapping);
        mpi.send(&[1], peer)?;
    }
    Ok(())
}
