//! [`Info`]: a provider that fits, with the addresses to use.

use core::ffi::{CStr, c_char};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ptr::{self, NonNull};
use std::ffi::CString;

use libfabric_sys::*;

use super::VERSION;
use crate::{Error, Result};

/// Kinds of registered memory that this crate knows.
const MEMORY: i32 = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// Providers that are chosen only by name: of one machine, without guarantees that are needed, or
/// replaced by others.
const BY_NAME_ONLY: [&str; 9] = ["shm", "umf", "sm2", "lnx", "sockets", "udp", "net", "ofi_mrail", "ofi_rxd"];

/// What an endpoint is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Query<'q> {
    /// A server: a provider, or "" for any; and an interface or address, or "" for any.
    Serve { provider: &'q str, interface: &'q str },
    /// A connection to a server with this format of address, and this address.
    Connect { provider: &'q str, format: u32, name: &'q [u8] },
}

/// An entry of `fi_getinfo(3)`.
#[derive(Debug)]
pub(crate) struct Info {
    library: &'static Library,
    entry: NonNull<fi_info>,
    provider: String,
}

// SAFETY: the entry is owned, and not changed after it was made.
unsafe impl Send for Info {}
// SAFETY: as above.
unsafe impl Sync for Info {}

/// A list of `fi_getinfo(3)`.
struct List(&'static Library, *mut fi_info);

impl List {
    fn iter(&self) -> impl Iterator<Item = &fi_info> {
        // SAFETY: the list and its entries are valid until it is freed.
        core::iter::successors(unsafe { self.1.as_ref() }, |info| unsafe { info.next.as_ref() })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is of this library, or null, and not used any more.
        unsafe { self.0.fi_freeinfo(self.1) };
    }
}

/// Returns the name of an entry's provider.
fn provider_of(info: &fi_info) -> &str {
    // SAFETY: an entry of the library has valid attributes, or null.
    unsafe {
        let name = info.fabric_attr.as_ref().map_or(ptr::null_mut(), |fabric| fabric.prov_name);
        if name.is_null() { "" } else { CStr::from_ptr(name).to_str().unwrap_or("") }
    }
}

/// Returns the name of an entry's domain, which for tcp is that of the network interface.
fn domain_of(info: &fi_info) -> &str {
    // SAFETY: as above.
    unsafe {
        let name = info.domain_attr.as_ref().map_or(ptr::null_mut(), |domain| domain.name);
        if name.is_null() { "" } else { CStr::from_ptr(name).to_str().unwrap_or("") }
    }
}

/// Returns the kinds of registered memory of an entry's domain.
fn memory_mode_of(info: &fi_info) -> i32 {
    // SAFETY: as above.
    unsafe { info.domain_attr.as_ref().map_or(0, |domain| domain.mr_mode) }
}

/// Returns the source address of an entry.
fn source_of(info: &fi_info) -> Option<SocketAddr> {
    if info.src_addr.is_null() {
        return None;
    }
    // SAFETY: an entry's address has as many bytes as it says.
    let name = unsafe { core::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen) };
    socket_address(info.addr_format, name)
}

/// Returns the socket address in the bytes of an endpoint's name, if it is one.
pub(crate) fn socket_address(format: u32, name: &[u8]) -> Option<SocketAddr> {
    if !matches!(format, FI_SOCKADDR | FI_SOCKADDR_IN | FI_SOCKADDR_IN6) {
        return None;
    }
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let port = u16::from_be_bytes(name.get(2..4)?.try_into().ok()?);
    let address = match i32::from(family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(name.get(4..8)?).ok()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(name.get(8..24)?).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// Lists what libfabric has for reliable endpoints with messages and remote reads.
fn list(library: &'static Library, provider: &str, node: Option<(IpAddr, u16, bool)>) -> Result<List> {
    let hints = List(library, library.fi_allocinfo());
    let failed = |reason: &str| Error::Fabric {
        call: "fi_getinfo",
        reason: reason.to_owned(),
        provider: provider.to_owned(),
    };
    // SAFETY: `fi_allocinfo` returned an entry with all attributes, or null.
    unsafe {
        let info = hints.1.as_mut().ok_or_else(|| failed("no memory"))?;
        info.caps = FI_MSG | FI_RMA | FI_READ | FI_REMOTE_READ | FI_SEND | FI_RECV;
        (*info.ep_attr).r#type = FI_EP_RDM;
        let domain = &mut *info.domain_attr;
        domain.mr_mode = MEMORY;
        domain.threading = FI_THREAD_SAFE;
        domain.resource_mgmt = FI_RM_ENABLED;
        if !provider.is_empty() {
            let name = CString::new(provider).map_err(|_| failed("the provider's name has a zero"))?;
            // The library frees it with the entry.
            (*info.fabric_attr).prov_name = libc::strdup(name.as_ptr());
        }
    }
    let (host, service) = match node {
        Some((address, port, _)) => (address.to_string(), port.to_string()),
        None => Default::default(),
    };
    let texts = (CString::new(host).unwrap_or_default(), CString::new(service).unwrap_or_default());
    let pointer = |text: &CStr| if text.is_empty() { ptr::null::<c_char>() } else { text.as_ptr() };
    let is_source = node.is_some_and(|(_, _, is_source)| is_source);
    // A server's port is any that is free.
    let service = if is_source { ptr::null() } else { pointer(&texts.1) };
    let flags = if is_source { FI_SOURCE } else { 0 };
    let mut found = List(library, ptr::null_mut());
    // SAFETY: the texts end with a zero, and the hints are of this library.
    let result =
        unsafe { library.fi_getinfo(VERSION, pointer(&texts.0), service, flags, hints.1, &raw mut found.1) };
    match result {
        0 => Ok(found),
        // There is nothing.
        _ if -result == FI_ENODATA => Ok(List(library, ptr::null_mut())),
        _ => Err(failed(&library.text_of(result))),
    }
}

/// Lets libfabric load its providers, which its first call does.
pub(super) fn load_providers(library: &'static Library) {
    // What it finds, or why it fails, is of no interest.
    let _ = list(library, "tcp", None);
}

/// Returns the names of the providers that libfabric offers, each once.
pub(crate) fn offered(library: &'static Library) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for info in list(library, "", None).iter().flat_map(List::iter) {
        let name = provider_of(info);
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

impl Info {
    /// Returns the first entry that fits.
    pub(crate) fn find(library: &'static Library, query: Query<'_>) -> Result<Self> {
        let (provider, found) = match query {
            Query::Serve { provider, interface } => {
                let address = interface.parse::<IpAddr>().ok();
                (provider, list(library, provider, address.map(|address| (address, 0, true)))?)
            }
            Query::Connect { provider, format, name } => {
                let address = socket_address(format, name);
                let node = address.map(|address| (address.ip(), address.port(), false));
                (provider, list(library, provider, node)?)
            }
        };
        let fits = |info: &&fi_info| {
            let name = provider_of(info);
            // Two layered providers may both be called by the name of the lower one.
            let mut parts = name.split(';');
            match query {
                Query::Connect { format, .. } => name == provider && info.addr_format == format,
                Query::Serve { provider, .. } if !provider.is_empty() => {
                    name == provider || parts.any(|part| part == provider)
                }
                Query::Serve { .. } => !parts.any(|part| BY_NAME_ONLY.contains(&part)),
            }
        };
        let is_at = |info: &&fi_info| match query {
            Query::Serve { interface, .. }
                if !interface.is_empty() && interface.parse::<IpAddr>().is_err() =>
            {
                domain_of(info) == interface
            }
            _ => true,
        };
        // Memory of providers that want contexts, or prefixes of messages, does not fit. A key that
        // the provider chooses may be given out twice: then addresses must tell blocks apart.
        let is_usable = |info: &&fi_info| {
            let has = |mode| memory_mode_of(info) & mode != 0;
            info.mode == 0 && (!has(FI_MR_PROV_KEY) || has(FI_MR_VIRT_ADDR))
        };
        let is_loopback = |info: &&fi_info| source_of(info).is_some_and(|source| source.ip().is_loopback());
        let candidates = || found.iter().filter(fits).filter(is_at).filter(is_usable);
        // Of one provider, an address that other machines reach is better.
        let chosen = candidates().next().map(|first| {
            let name = provider_of(first);
            let reachable = |info: &&fi_info| provider_of(info) == name && !is_loopback(info);
            if matches!(query, Query::Serve { .. }) {
                candidates().find(reachable).unwrap_or(first)
            } else {
                first
            }
        });
        let Some(chosen) = chosen else {
            let wanted = match query {
                Query::Serve { provider: "", interface: "" } => "any of a network".to_owned(),
                Query::Serve { provider, interface: "" } => provider.to_owned(),
                Query::Serve { provider, interface } => format!("{provider} at {interface}"),
                Query::Connect { provider, .. } => format!("{provider}, which the producer uses"),
            };
            let offered = offered(library);
            let offered = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
            return Err(Error::NoProvider { wanted, offered });
        };
        // SAFETY: the entry is of this library.
        let entry = NonNull::new(unsafe { library.fi_dupinfo(chosen) });
        let provider = provider_of(chosen).to_owned();
        let entry = entry.ok_or_else(|| Error::Fabric {
            call: "fi_dupinfo",
            reason: "no memory".to_owned(),
            provider: provider.clone(),
        })?;
        Ok(Self { library, entry, provider })
    }

    pub(crate) const fn library(&self) -> &'static Library {
        self.library
    }

    pub(crate) const fn as_ptr(&self) -> *mut fi_info {
        self.entry.as_ptr()
    }

    const fn entry(&self) -> &fi_info {
        // SAFETY: the entry is owned.
        unsafe { self.entry.as_ref() }
    }

    pub(crate) fn provider(&self) -> &str {
        &self.provider
    }

    pub(crate) const fn format(&self) -> u32 {
        self.entry().addr_format
    }

    pub(super) const fn fabric_attributes(&self) -> *mut fi_fabric_attr {
        self.entry().fabric_attr
    }

    /// Returns whether the domain has this kind of registered memory.
    pub(super) fn has_memory_mode(&self, mode: i32) -> bool {
        memory_mode_of(self.entry()) & mode != 0
    }

    /// Returns whether a registration that is closed gives no access any more. The provider verbs
    /// keeps registrations in a cache, with their keys and pages, unless the environment says
    /// otherwise (`fi_mr(3)`).
    pub(crate) fn closes_registrations(&self) -> bool {
        let is = |name, value: &str| umf_os::environment::variable(name).is_some_and(|set| set == value);
        let is_cached = self.provider.split(';').any(|part| part == "verbs");
        !is_cached || is("FI_MR_CACHE_MAX_COUNT", "0") || is("FI_MR_CACHE_MONITOR", "disabled")
    }

    /// Returns the bytes of keys.
    pub(super) fn key_size(&self) -> usize {
        // SAFETY: an entry of the library has its attributes.
        unsafe { (*self.entry().domain_attr).mr_key_size }
    }

    /// Returns the bytes of the longest message or read.
    pub(crate) fn max_message(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.entry().ep_attr).max_msg_size }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the entry is of this library, and not used any more.
        unsafe { self.library.fi_freeinfo(self.entry.as_ptr()) };
    }
}
