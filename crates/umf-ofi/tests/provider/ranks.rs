//! Processes with an endpoint each: how tests start them, and what they do.

use std::ffi::{CStr, OsString, c_void};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::{null, null_mut};

use libfabric_sys::*;

pub(crate) const ADDRESS: usize = 64;
const ROLE: &str = "TESTS_UMF_OFI_ROLE";

#[track_caller]
pub(crate) fn succeeds(result: impl Into<i64>) {
    let result = result.into();
    assert!(result >= 0, "error {}", -result);
}

/// Begins an operation, however long the other process takes to accept the connection.
pub(crate) fn begins(operation: impl Fn() -> isize) {
    loop {
        match operation() {
            again if again == -(FI_EAGAIN as isize) => std::thread::yield_now(),
            result => return succeeds(result as i64),
        }
    }
}

/// A completion, or the error of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub context: usize,
    pub flags: u64,
    pub length: usize,
    pub data: u64,
    pub tag: u64,
    pub source: u64,
    pub error: i32,
    pub excess: usize,
}

/// What an application knows of registered memory.
pub(crate) const MEMORY: i32 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// Returns the first entry for a node and a service with the provider of the tests, or the error.
/// The caller frees it.
pub(crate) fn find(
    library: &Library,
    version: u32,
    (node, service, flags): (Option<&CStr>, Option<&CStr>, u64),
    change: impl FnOnce(&mut fi_info),
) -> Result<*mut fi_info, i32> {
    let (text, mut info) = (|text: Option<&CStr>| text.map_or(null(), CStr::as_ptr), null_mut());
    // SAFETY: the library allocates entries with their attributes. The calls have the arguments
    // that the interface requires.
    unsafe {
        let hints = library.fi_allocinfo();
        (*(*hints).fabric_attr).prov_name = libc::strdup(c"umf".as_ptr());
        change(&mut *hints);
        let (node, service) = (text(node), text(service));
        let found = library.fi_getinfo(version, node, service, flags, hints, &raw mut info);
        library.fi_freeinfo(hints);
        if found < 0 {
            return Err(-found);
        }
        assert_eq!(CStr::from_ptr((*(*info).fabric_attr).prov_name), c"umf");
    }
    Ok(info)
}

/// An endpoint with all that it needs.
pub(crate) struct Endpoint {
    pub fabric: *mut fid_fabric,
    pub domain: *mut fid_domain,
    pub queue: *mut fid_cq,
    pub vector: *mut fid_av,
    pub endpoint: *mut fid_ep,
}

impl Endpoint {
    /// Opens an endpoint whose queue waits with a kind of object.
    pub(crate) fn open(library: &Library, progress: fi_progress, wait: fi_wait_obj) -> Self {
        let change = |hints: &mut fi_info| {
            // SAFETY: the attributes exist.
            let domain = unsafe { &mut *hints.domain_attr };
            (domain.data_progress, domain.mr_mode) = (progress, MEMORY);
        };
        let info = find(library, library.version(), (None, None, 0), change).unwrap();
        let endpoint = Self::of_entry(library, info, wait).unwrap();
        // SAFETY: the entry is not used again.
        unsafe { library.fi_freeinfo(info) };
        assert_eq!(endpoint.try_enable(), -FI_ENOAV);
        endpoint
    }

    /// Opens the endpoint of an entry, or returns the error.
    pub(crate) fn of_entry(library: &Library, info: *mut fi_info, wait: fi_wait_obj) -> Result<Self, i32> {
        let (mut fabric, mut domain) = (null_mut(), null_mut());
        let (mut queue, mut vector, mut endpoint) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the calls have the arguments that the interface requires.
        unsafe {
            succeeds(library.fi_fabric((*info).fabric_attr, &raw mut fabric, null_mut()));
            succeeds(fi_domain(fabric, info, &raw mut domain, null_mut()));
            let opened = fi_endpoint(domain, info, &raw mut endpoint, null_mut());
            if opened < 0 {
                succeeds(fi_close(domain.cast()));
                succeeds(fi_close(fabric.cast()));
                return Err(-opened);
            }
            let mut attributes =
                fi_cq_attr { format: FI_CQ_FORMAT_TAGGED, wait_obj: wait, ..fi_cq_attr::ZERO };
            succeeds(fi_cq_open(domain, &raw mut attributes, &raw mut queue, null_mut()));
            let mut attributes = fi_av_attr { r#type: FI_AV_TABLE, ..fi_av_attr::ZERO };
            succeeds(fi_av_open(domain, &raw mut attributes, &raw mut vector, null_mut()));
        }
        Ok(Self { fabric, domain, queue, vector, endpoint })
    }

    fn try_enable(&self) -> i32 {
        // SAFETY: the endpoint is open.
        unsafe { fi_enable(self.endpoint) }
    }

    /// Binds the queue and the address vector, and enables the endpoint.
    pub(crate) fn enable(&self) {
        // SAFETY: the objects are open.
        unsafe {
            succeeds(fi_ep_bind(self.endpoint, self.queue.cast(), FI_TRANSMIT | FI_RECV));
            succeeds(fi_ep_bind(self.endpoint, self.vector.cast(), 0));
        }
        succeeds(self.try_enable());
    }

    pub(crate) fn name(&self) -> [u8; ADDRESS] {
        let (mut name, mut length) = ([0; ADDRESS], 1);
        // SAFETY: the buffer has `length` bytes.
        unsafe {
            let buffer = name.as_mut_ptr().cast::<c_void>();
            assert_eq!(fi_getname(self.endpoint.cast(), buffer, &raw mut length), -FI_ETOOSMALL);
            assert_eq!(length, ADDRESS);
            succeeds(fi_getname(self.endpoint.cast(), buffer, &raw mut length));
        }
        name
    }

    /// Exchanges addresses with the test.
    pub(crate) fn meet(&self) {
        let name: String = self.name().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("name {name}");
        let names: Vec<[u8; ADDRESS]> = read_line()
            .split_whitespace()
            .map(|text| std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()))
            .collect();
        self.insert(&names);
    }

    /// Makes this the only address.
    pub(crate) fn insert_itself(&self) {
        self.insert(&[self.name()]);
    }

    /// Inserts the first addresses.
    pub(crate) fn insert(&self, names: &[[u8; ADDRESS]]) {
        let mut numbers = vec![0; names.len()];
        // SAFETY: as many addresses as numbers.
        let inserted = unsafe {
            let first = names.as_ptr().cast();
            fi_av_insert(self.vector, first, names.len(), numbers.as_mut_ptr(), 0, null_mut())
        };
        assert_eq!(inserted as usize, names.len());
        assert!(numbers.iter().copied().eq(0..names.len() as u64), "{numbers:?}");
        // SAFETY: no address is read.
        let none = unsafe { fi_av_insert(self.vector, null(), 1, null_mut(), 0, null_mut()) };
        assert_eq!(none, -FI_EINVAL);
    }

    /// Returns the next completion, or `None` if there is none now.
    pub(crate) fn poll(&self) -> Option<Completion> {
        let mut entry = fi_cq_tagged_entry::ZERO;
        let mut source = 0;
        // SAFETY: one entry of the queue's format.
        match unsafe { fi_cq_readfrom(self.queue, (&raw mut entry).cast(), 1, &raw mut source) } {
            1 => Some(Completion {
                context: entry.op_context.addr(),
                flags: entry.flags,
                length: entry.len,
                data: entry.data,
                tag: entry.tag,
                source,
                error: 0,
                excess: 0,
            }),
            none if none == -(FI_EAGAIN as isize) => None,
            error => {
                assert_eq!(error, -(FI_EAVAIL as isize));
                let mut entry = fi_cq_err_entry_1_20::ZERO;
                entry.src_addr = FI_ADDR_NOTAVAIL;
                // SAFETY: an entry as large as any version's.
                assert_eq!(unsafe { fi_cq_readerr(self.queue, (&raw mut entry).cast(), 0) }, 1);
                let base = entry.base;
                Some(Completion {
                    context: base.op_context.addr(),
                    flags: base.flags,
                    length: base.len,
                    data: base.data,
                    tag: base.tag,
                    source: entry.src_addr,
                    error: base.err,
                    excess: base.olen,
                })
            }
        }
    }

    pub(crate) fn next(&self) -> Completion {
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn send(&self, to: u64, tag: u64, bytes: &[u8]) {
        let context = std::ptr::without_provenance_mut(1);
        // SAFETY: the memory is kept until the completion, for which this waits.
        begins(|| unsafe {
            fi_tsend(self.endpoint, bytes.as_ptr().cast(), bytes.len(), null_mut(), to, tag, context)
        });
        let sent = self.next();
        assert_eq!((sent.context, sent.flags, sent.error), (1, FI_SEND | FI_TAGGED, 0));
    }

    /// Posts a receive with a context.
    pub(crate) fn post(&self, context: usize, from: u64, tag: u64, into: &mut [u8]) {
        // SAFETY: the memory is kept until the completion.
        succeeds(unsafe {
            let context = std::ptr::without_provenance_mut(context);
            let (buffer, length) = (into.as_mut_ptr().cast(), into.len());
            fi_trecv(self.endpoint, buffer, length, null_mut(), from, tag, 0, context) as i64
        });
    }

    pub(crate) fn receive(&self, from: u64, tag: u64, into: &mut [u8]) -> Completion {
        self.post(2, from, tag, into);
        let received = self.next();
        assert_eq!((received.context, received.source), (2, from), "{received:?}");
        received
    }

    /// Receives a message, and leaves out completions of others.
    pub(crate) fn receive_beside(&self, from: u64, tag: u64, into: &mut [u8]) {
        self.post(2, from, tag, into);
        while self.next().context != 2 {}
    }

    pub(crate) fn close(self) {
        self.close_with(&[]);
    }

    /// Closes it, and other objects of the domain that it uses.
    pub(crate) fn close_with(self, others: &[*mut fid]) {
        // SAFETY: nothing is used afterwards.
        unsafe {
            assert_eq!(fi_close(self.domain.cast()), -FI_EBUSY);
            succeeds(fi_close(self.endpoint.cast()));
            for object in others {
                succeeds(fi_close(*object));
            }
            succeeds(fi_close(self.queue.cast()));
            for object in [self.vector.cast(), self.domain.cast(), self.fabric.cast()] {
                succeeds(fi_close(object));
            }
        }
    }
}

/// What the process of an endpoint does: `None` in the test itself.
pub(crate) fn role() -> Option<usize> {
    Some(std::env::var(ROLE).ok()?.parse().unwrap())
}

pub(crate) fn library(test: &str) -> Option<Library> {
    let path = std::env::var_os("TESTS_LIBFABRIC").unwrap_or_else(|| OsString::from(LIBRARY));
    // SAFETY: the system's library, or the one that the user of the test names.
    match unsafe { Library::open(&path) } {
        Ok(library) => Some(library),
        Err(error) => {
            println!("umf-skip: {test}: {error}");
            None
        }
    }
}

/// A process with an endpoint. Dropping it kills the process.
pub(crate) struct Rank {
    pub child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Rank {
    /// Starts a process that runs a test in a role.
    pub(crate) fn start(test: &str, folder: &Path, role: usize) -> Self {
        let mut child = process(test, folder, role);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// Returns the rest of the next line that begins with a word.
    pub(crate) fn line(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the process ended before {word:?}");
            // The test harness writes the name of the test before the first line.
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
            print!("{line}");
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn ends_well(mut self) {
        self.input = None;
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It has ended, unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a test in a process of its own. Returns whether this is that process.
pub(crate) fn is_alone(test: &str) -> bool {
    if role().is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(process(test, folder.path(), 0).status().unwrap().success());
        return false;
    }
    true
}

/// Returns a process that runs a test in a role, with the provider in a folder.
pub(crate) fn process(test: &str, folder: &Path, role: usize) -> Command {
    let program = std::env::current_exe().unwrap();
    let link = folder.join("libumf-fi.so");
    if !link.exists() {
        let built = program.parent().unwrap().join("libumf_ofi.so");
        std::os::unix::fs::symlink(built, link).unwrap();
    }
    let mut child = Command::new(program);
    child.args(["--exact", test, "--nocapture"]).env(ROLE, role.to_string());
    child.env("FI_PROVIDER_PATH", folder).env("FI_UMF_COUNTERS", folder);
    child
}

/// Starts two processes with this test, and tells each the addresses of both.
pub(crate) fn start(test: &str, folder: &tempfile::TempDir) -> [Rank; 2] {
    let mut ranks = [0, 1].map(|rank| Rank::start(test, folder.path(), rank));
    let names: Vec<_> = ranks.iter_mut().map(|rank| rank.line("name ")).collect();
    for rank in &mut ranks {
        rank.tell(&names.join(" "));
    }
    ranks
}

pub(crate) fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line
}

/// Opens the endpoint of a process, and exchanges addresses with the test.
pub(crate) fn meet(library: &Library) -> Endpoint {
    meet_with(library, FI_PROGRESS_UNSPEC)
}

pub(crate) fn meet_with(library: &Library, progress: fi_progress) -> Endpoint {
    let endpoint = Endpoint::open(library, progress, FI_WAIT_UNSPEC);
    endpoint.enable();
    endpoint.meet();
    endpoint
}

/// Opens an endpoint that sends to itself.
pub(crate) fn open_alone(library: &Library, wait: fi_wait_obj) -> Endpoint {
    let endpoint = Endpoint::open(library, FI_PROGRESS_UNSPEC, wait);
    endpoint.enable();
    endpoint.insert_itself();
    endpoint
}

pub(crate) fn contents(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|at| (at as u64 * 31 + seed * 7) as u8).collect()
}
