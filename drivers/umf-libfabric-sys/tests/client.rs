//! Finding a library, and transfers through a provider of it.
//!
//! `TESTS_LIBFABRIC` names another library than the system's.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::ffi::{CStr, OsString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use libfabric_sys::*;

/// Opens the library. Without one, prints why the test is skipped.
fn library(test: &str) -> Option<Library> {
    let path = std::env::var_os("TESTS_LIBFABRIC").unwrap_or_else(|| OsString::from(LIBRARY));
    // SAFETY: the system's library, or the one that the user of the test names.
    match unsafe { Library::open(&path) } {
        Ok(library) => {
            let version = library.version();
            println!("libfabric {}.{} of {}", version >> 16, version & 0xffff, library.path().display());
            Some(library)
        }
        Err(error) => {
            println!("umf-skip: {test}: {error}");
            None
        }
    }
}

#[test]
fn invalid_library_is_named_in_the_error() {
    // SAFETY: the file does not exist, or is the C library.
    let (missing, other) =
        unsafe { (Library::open("/nonexistent/libfabric.so.1"), Library::open("libc.so.6")) };
    let missing = missing.unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/libfabric.so.1") && missing.contains("libfabric1"), "{missing}");
    let other = other.unwrap_err().to_string();
    assert!(other.contains("libc.so.6") && other.contains("fi_getinfo"), "{other}");
}

/// A provider finds the library that loaded it, and allocates structures of that library's size.
#[test]
fn loaded_library_is_found() {
    let Some(opened) = library("loaded_library_is_found") else { return };
    // SAFETY: a lookup of an address.
    let global = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"fi_dupinfo".as_ptr()) };
    assert!(global.is_null(), "the library was opened with a local scope");
    let loaded = Library::loaded();
    let found: Vec<_> = loaded.iter().map(|library| library.functions().fi_dupinfo as usize).collect();
    assert_eq!(found, [opened.functions().fi_dupinfo as usize]);
    assert_eq!(loaded[0].version(), opened.version());
    assert!(loaded[0].path().to_str().unwrap().contains("libfabric"), "{}", loaded[0].path().display());

    let members = layout::structures().filter(|structure| structure.name == "fi_domain_attr");
    let members = members.flat_map(|structure| structure.members);
    let size = members
        .filter(|member| member.since <= opened.version())
        .map(|member| member.offset + member.size)
        .max()
        .unwrap();
    let info = loaded[0].fi_allocinfo();
    // SAFETY: the library allocates an entry with its attributes, and the name with `malloc`.
    unsafe {
        assert!((*info).next.is_null() && !(*info).tx_attr.is_null() && !(*info).ep_attr.is_null());
        assert!(libc::malloc_usable_size((*info).domain_attr.cast()) >= size);
        (*(*info).domain_attr).name = libc::strdup(c"somewhere".as_ptr());
        let copy = loaded[0].fi_dupinfo(info);
        loaded[0].fi_freeinfo(info);
        assert_eq!(CStr::from_ptr((*(*copy).domain_attr).name), c"somewhere");
        opened.fi_freeinfo(copy);
    }
    assert_eq!(opened.text_of(-FI_ETRUNC), opened.text_of(FI_ETRUNC));
    assert!(!opened.text_of(FI_EAVAIL).is_empty());
}

/// Operations that a table does not have, or that end beyond its size, are not called.
#[test]
fn missing_operations_are_not_called() {
    unsafe extern "C" fn set_user_id(_: *mut fid_av, _: u64, _: u64, _: u64) -> c_int {
        7
    }
    static FULL: fi_ops_av = fi_ops_av { set_user_id: Some(set_user_id), ..fi_ops_av::UNSUPPORTED };
    static OLD: fi_ops_av = fi_ops_av { size: core::mem::offset_of!(fi_ops_av, set_user_id), ..FULL };
    static NONE: fi_ops_av = fi_ops_av { set_user_id: None, ..FULL };
    static EMPTY: fi_ops_av = fi_ops_av::UNSUPPORTED;
    let call = |table: *mut fi_ops_av| {
        let mut vector = fid_av { ops: table, ..fid_av::ZERO };
        // SAFETY: the object is live, and its operations take any argument.
        unsafe { fi_av_set_user_id(&raw mut vector, 0, 0, 0) }
    };
    assert_eq!(call(FULL.as_table()), 7);
    for table in [OLD.as_table(), NONE.as_table(), EMPTY.as_table(), null_mut()] {
        assert_eq!(call(table), -FI_ENOSYS);
    }
    let mut domain = fid_domain::ZERO;
    let mut region = null_mut();
    // SAFETY: the object is live and has no table.
    let registered =
        unsafe { fi_mr_reg(&raw mut domain, null(), 0, FI_READ, 0, 0, 0, &raw mut region, null_mut()) };
    assert_eq!(registered, -FI_ENOSYS);
}

/// An endpoint with what it needs, which is its own peer.
struct Endpoint<'a> {
    library: &'a Library,
    info: *mut fi_info,
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    queue: *mut fid_cq,
    vector: *mut fid_av,
    endpoint: *mut fid_ep,
    address: fi_addr_t,
}

#[track_caller]
fn succeeds(result: impl Into<i64>) {
    let result = result.into();
    assert!(result >= 0, "error {}", -result);
}

impl<'a> Endpoint<'a> {
    /// Opens an endpoint of the first provider for reliable messages and reads over sockets. Returns
    /// `None` if there is none.
    ///
    /// # Safety
    /// The library is libfabric.
    unsafe fn open(library: &'a Library) -> Option<Self> {
        // SAFETY: the library is libfabric, and the calls have the arguments that it requires.
        unsafe {
            let hints = library.fi_allocinfo();
            (*hints).caps = FI_TAGGED | FI_MSG | FI_RMA;
            (*hints).mode = FI_CONTEXT | FI_CONTEXT2;
            (*(*hints).ep_attr).r#type = FI_EP_RDM;
            (*(*hints).domain_attr).mr_mode =
                FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
            (*(*hints).fabric_attr).prov_name = libc::strdup(c"tcp".as_ptr());
            let mut info = null_mut();
            let version = make_version(1, 17);
            let found =
                library.fi_getinfo(version, c"127.0.0.1".as_ptr(), null(), FI_SOURCE, hints, &raw mut info);
            library.fi_freeinfo(hints);
            if found == -FI_ENODATA {
                return None;
            }
            succeeds(found);
            println!("provider {:?}", CStr::from_ptr((*(*info).fabric_attr).prov_name));

            let (mut fabric, mut domain, mut queue) = (null_mut(), null_mut(), null_mut());
            let (mut vector, mut endpoint) = (null_mut(), null_mut());
            succeeds(library.fi_fabric((*info).fabric_attr, &raw mut fabric, null_mut()));
            succeeds(fi_domain(fabric, info, &raw mut domain, null_mut()));
            let mut attributes = fi_cq_attr { format: FI_CQ_FORMAT_TAGGED, ..fi_cq_attr::ZERO };
            succeeds(fi_cq_open(domain, &raw mut attributes, &raw mut queue, null_mut()));
            let mut attributes = fi_av_attr { r#type: FI_AV_TABLE, ..fi_av_attr::ZERO };
            succeeds(fi_av_open(domain, &raw mut attributes, &raw mut vector, null_mut()));
            succeeds(fi_endpoint(domain, info, &raw mut endpoint, null_mut()));
            succeeds(fi_ep_bind(endpoint, queue.cast(), FI_TRANSMIT | FI_RECV));
            succeeds(fi_ep_bind(endpoint, vector.cast(), 0));
            succeeds(fi_enable(endpoint));

            let mut name = [0u8; FI_NAME_MAX];
            let mut length = 1;
            let short = fi_getname(endpoint.cast(), name.as_mut_ptr().cast(), &raw mut length);
            assert_eq!(short, -FI_ETOOSMALL);
            succeeds(fi_getname(endpoint.cast(), name.as_mut_ptr().cast(), &raw mut length));
            let mut address = FI_ADDR_NOTAVAIL;
            let inserted = fi_av_insert(vector, name.as_ptr().cast(), 1, &raw mut address, 0, null_mut());
            assert_eq!(inserted, 1);
            Some(Self { library, info, fabric, domain, queue, vector, endpoint, address })
        }
    }

    /// Repeats an operation until it finds resources.
    fn post(&self, mut operation: impl FnMut() -> isize) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let result = operation();
            if result != -(FI_EAGAIN as isize) {
                return succeeds(result as i64);
            }
            assert!(Instant::now() < end, "the operation finds no resources");
            // SAFETY: the queue is live. Reading nothing makes progress.
            let progress = unsafe { fi_cq_read(self.queue, null_mut(), 0) };
            assert!([0, -(FI_EAGAIN as isize)].contains(&progress), "{progress}");
        }
    }

    /// Waits for completions.
    fn complete(&self, count: usize) -> Vec<fi_cq_tagged_entry> {
        let end = Instant::now() + Duration::from_secs(60);
        let mut entries = Vec::new();
        while entries.len() < count {
            let mut entry = fi_cq_tagged_entry::ZERO;
            // SAFETY: the queue is live and has this format.
            let read = unsafe { fi_cq_read(self.queue, (&raw mut entry).cast(), 1) };
            if read == 1 {
                entries.push(entry);
                continue;
            }
            assert_eq!(read, -(FI_EAGAIN as isize));
            assert!(Instant::now() < end, "{} of {count} completions", entries.len());
            std::thread::yield_now();
        }
        entries
    }
}

impl Drop for Endpoint<'_> {
    fn drop(&mut self) {
        // SAFETY: the objects are live, and each is closed before those that it uses.
        unsafe {
            for object in [
                self.endpoint.cast::<fid>(),
                self.vector.cast(),
                self.queue.cast(),
                self.domain.cast(),
                self.fabric.cast(),
            ] {
                let closed = fi_close(object);
                assert!(closed == 0 || std::thread::panicking(), "error {closed}");
            }
            self.library.fi_freeinfo(self.info);
        }
    }
}

#[test]
fn tagged_message_and_read_arrive() {
    let test = "tagged_message_and_read_arrive";
    let Some(library) = library(test) else { return };
    // SAFETY: the library is libfabric.
    let Some(endpoint) = (unsafe { Endpoint::open(&library) }) else {
        return println!("umf-skip: {test}: the library has no provider tcp");
    };
    // Local buffers are in registered memory, since the provider may ask for it.
    let mut memory = vec![0u8; 4096];
    memory[..5].copy_from_slice(b"hello");
    let start = memory.as_mut_ptr();
    let at = |offset: usize| start.wrapping_add(offset).cast::<c_void>();
    let rights = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    let mut region = null_mut();
    let mut contexts = [fi_context2::ZERO; 3];
    let context = contexts.as_mut_ptr();
    // SAFETY: memory and contexts live until the region and the endpoint are closed, and are
    // accessed through pointers only.
    unsafe {
        succeeds(fi_mr_reg(endpoint.domain, at(0), 4096, rights, 0, 7, 0, &raw mut region, null_mut()));
        let (ep, descriptor, address) = (endpoint.endpoint, fi_mr_desc(region), endpoint.address);
        endpoint.post(|| fi_trecv(ep, at(1024), 64, descriptor, FI_ADDR_UNSPEC, 0x40, 0xf, context.cast()));
        endpoint.post(|| fi_tsend(ep, at(0), 5, descriptor, address, 0x42, context.add(1).cast()));
        let entries = endpoint.complete(2);
        let received = entries.iter().find(|entry| entry.flags & FI_RECV != 0).unwrap();
        assert_eq!((received.op_context, received.len), (context.cast(), 5));
        assert_eq!((received.tag, received.flags & FI_TAGGED), (0x42, FI_TAGGED));

        let virtual_address = (*(*endpoint.info).domain_attr).mr_mode & FI_MR_VIRT_ADDR != 0;
        let remote = if virtual_address { start.addr() as u64 } else { 0 };
        let key = fi_mr_key(region);
        endpoint.post(|| fi_read(ep, at(2048), 5, descriptor, address, remote, key, context.add(2).cast()));
        let entries = endpoint.complete(1);
        assert_eq!(entries[0].op_context, context.add(2).cast());
        assert_eq!(entries[0].flags & (FI_READ | FI_RMA), FI_READ | FI_RMA);
        succeeds(fi_close(region.cast()));
    }
    drop(endpoint);
    assert_eq!((&memory[1024..1029], &memory[2048..2053]), (&b"hello"[..], &b"hello"[..]));
}
