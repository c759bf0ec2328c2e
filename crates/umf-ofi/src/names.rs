//! Names of hosts and services, and addresses in entries of `getinfo`.
//!
//! A service is an endpoint whose address processes of this user compute from its name, so that a
//! client finds its server as with other providers. All names of this machine mean the same host.

use core::ffi::{CStr, c_char, c_void};

use umf_link::{ADDRESS_SIZE, LinkAddress, LinkBuilder};

/// What names and addresses stand for, or why they stand for nothing.
pub(crate) type Found = Result<Option<LinkAddress>, &'static str>;

/// Returns a builder that makes addresses.
pub(crate) fn builder() -> Option<LinkBuilder> {
    let settings = umf::link::link_settings();
    settings
        .inspect_err(|error| tracing::error!(%error, "libfabric: the settings of umf cannot be used"))
        .ok()
        .map(|settings| LinkBuilder::new().settings(settings))
}

/// Returns a text of the interface, if there is one.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn text<'t>(text: *const c_char) -> Result<Option<&'t str>, &'static str> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| "a name that is not UTF-8")?;
    Ok((!text.is_empty()).then_some(text))
}

/// Returns whether a name or number of a host is one of this machine. A name that only a name
/// server knows is asked for there.
fn is_local(host: &str) -> bool {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer has a byte more than the length, which stays 0.
    let has_name = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } == 0;
    let own = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok());
    // A socket can be bound to addresses of this machine only.
    host == "localhost" || has_name && own == Some(host) || std::net::UdpSocket::bind((host, 0)).is_ok()
}

/// Returns the address that a host and a service stand for, each of which may be null: that of the
/// service, or the one that the host is the text of. Names of hosts alone stand for no address.
///
/// # Safety
/// Both are null or C strings.
pub(crate) unsafe fn find(builder: &LinkBuilder, host: *const c_char, service: *const c_char) -> Found {
    // SAFETY: by this function's contract.
    let (host, service) = unsafe { (text(host)?, text(service)?) };
    if let Some(host) = host {
        if let Ok(address) = host.parse() {
            return Ok(Some(address));
        }
        if !is_local(host) {
            return Err("a host that is not this machine");
        }
    }
    let Some(service) = service else { return Ok(None) };
    builder.address_of(&format!("libfabric/{service}")).map(Some).map_err(|_| "a service with another name")
}

/// Returns the address in an entry.
///
/// # Safety
/// `address` is null or has `length` bytes.
pub(crate) unsafe fn in_entry(address: *const c_void, length: usize) -> Found {
    if address.is_null() || length == 0 {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    let bytes = unsafe { core::slice::from_raw_parts(address.cast::<u8>(), length) };
    LinkAddress::from_bytes(bytes).map(Some).map_err(|_| "addresses of another format")
}

/// Returns a copy of an address that the library frees, and its length.
pub(crate) fn to_entry(address: Option<&LinkAddress>) -> (*mut c_void, usize) {
    let Some(address) = address else { return (core::ptr::null_mut(), 0) };
    // SAFETY: the memory is not used if there is none.
    unsafe {
        let memory = libc::malloc(ADDRESS_SIZE);
        if memory.is_null() {
            return (memory, 0);
        }
        core::ptr::copy_nonoverlapping(address.to_bytes().as_ptr(), memory.cast(), ADDRESS_SIZE);
        (memory, ADDRESS_SIZE)
    }
}
