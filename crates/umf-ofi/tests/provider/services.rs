//! Servers and clients: addresses of services, and texts of addresses.

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

use libfabric_sys::*;

use crate::ranks::{ADDRESS, Endpoint, MEMORY, Rank, find, library, read_line, role, succeeds};

/// Finds an entry as an application that knows the kind of memory does.
fn look(
    library: &Library,
    node: Option<&CStr>,
    service: Option<&CStr>,
    flags: u64,
) -> Result<*mut fi_info, i32> {
    find(library, library.version(), (node, service, flags), |hints| {
        // SAFETY: the attributes exist.
        unsafe { (*hints.domain_attr).mr_mode = MEMORY };
    })
}

/// Returns the address of the peer in an entry.
fn destination(info: *mut fi_info) -> Option<[u8; ADDRESS]> {
    // SAFETY: the entry is not freed.
    unsafe {
        if (*info).dest_addr.is_null() {
            return None;
        }
        assert_eq!((*info).dest_addrlen, ADDRESS);
        Some((*info).dest_addr.cast::<[u8; ADDRESS]>().read_unaligned())
    }
}

#[test]
fn client_finds_the_server_of_a_service() {
    const TEST: &str = "services::client_finds_the_server_of_a_service";
    let Some(library) = library(TEST) else { return };
    let Some(rank) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let [mut server, mut client] = [0, 1].map(|role| Rank::start(TEST, folder.path(), role));
        let service = format!("of-test-{}", std::process::id());
        server.tell(&service);
        server.line("ready");
        client.tell(&service);
        client.line("done");
        server.line("closed");
        client.tell("closed");
        return [server, client].into_iter().for_each(Rank::ends_well);
    };
    let service = CString::new(read_line().trim()).unwrap();
    let serve = || {
        let info = look(&library, None, Some(&service), FI_SOURCE).unwrap();
        let opened = Endpoint::of_entry(&library, info, FI_WAIT_UNSPEC);
        // SAFETY: the entry is not used again.
        unsafe { library.fi_freeinfo(info) };
        opened
    };
    let mut name = [0_u8; ADDRESS];
    if rank == 0 {
        let server = serve().unwrap();
        server.enable();
        server.post(3, FI_ADDR_UNSPEC, 1, &mut name);
        println!("ready");
        assert_eq!(server.next().length, ADDRESS);
        server.insert(&[name]);
        server.send(0, 2, b"welcome");
        server.receive(0, 3, &mut [0; 4]);
        server.close();
        println!("closed");
        return;
    }
    let info = look(&library, Some(c"localhost"), Some(&service), 0).unwrap();
    let address = destination(info).unwrap();
    let client = Endpoint::of_entry(&library, info, FI_WAIT_UNSPEC).unwrap();
    client.enable();
    client.insert(&[address]);
    client.send(0, 1, &client.name());
    assert_eq!(client.receive(0, 2, &mut name).length, 7);
    assert_eq!(serve().err(), Some(FI_EADDRINUSE));
    // The service of all names of this machine is the same, and that of no other one.
    for node in [None, Some(c"127.0.0.1"), Some(c"")] {
        let info = look(&library, node, Some(&service), 0).unwrap();
        assert_eq!(destination(info), Some(address), "{node:?}");
        // SAFETY: the entry is not used again.
        unsafe { library.fi_freeinfo(info) };
    }
    for node in [c"192.0.2.1", c"\xff"] {
        assert_eq!(look(&library, Some(node), Some(&service), 0), Err(FI_ENODATA), "{node:?}");
    }
    for (node, service) in [(Some(c"localhost"), None), (None, None)] {
        assert_eq!(destination(look(&library, node, service, 0).unwrap()), None);
    }
    let other = look(&library, None, Some(c"of-another-test"), 0).unwrap();
    assert_ne!(destination(other), Some(address));
    // SAFETY: the address vector is open, and the buffers have the lengths that are passed.
    unsafe {
        let (mut text, mut length) = ([0_u8; 256], 256);
        let written =
            fi_av_straddr(client.vector, address.as_ptr().cast(), text.as_mut_ptr().cast(), &raw mut length);
        let text = CStr::from_ptr(written);
        assert_eq!(text.count_bytes() + 1, length);
        let by_text = look(&library, Some(text), None, 0).unwrap();
        assert_eq!(destination(by_text), Some(address));
        let (mut number, mut found) = (0, [0_u8; ADDRESS]);
        let insert = |node: &CStr, number: &mut u64| {
            fi_av_insertsvc(client.vector, node.as_ptr(), service.as_ptr(), number, 0, null_mut())
        };
        assert_eq!((insert(c"localhost", &mut number), number), (1, 1));
        let mut length = ADDRESS;
        succeeds(fi_av_lookup(client.vector, 1, found.as_mut_ptr().cast(), &raw mut length));
        assert_eq!((found, length), (address, ADDRESS));
        assert_eq!((insert(c"192.0.2.1", &mut number), number), (0, FI_ADDR_NOTAVAIL));
        let none = fi_av_insertsvc(client.vector, null(), null(), &raw mut number, 0, null_mut());
        assert_eq!((none, number), (0, FI_ADDR_NOTAVAIL));
        for info in [info, other, by_text] {
            library.fi_freeinfo(info);
        }
    }
    client.send(0, 3, b"end");
    println!("done");
    assert_eq!(read_line().trim(), "closed");
    // Another process can serve when the server has ended.
    let server = serve().unwrap();
    assert_eq!(server.name(), address);
    server.enable();
    server.close();
    client.close();
}
