//! `fi_getinfo`: what the provider offers, and whether that fits the hints of an application.
//!
//! There is one kind of endpoint, reliable and without connections (`FI_EP_RDM`). What an
//! application does not ask for, it is not offered: capabilities that cost something for each
//! operation are left out.

use core::ffi::{CStr, c_char, c_int};

use libfabric_sys::*;
use umf_link::LinkAddress;
use umf_link::mesh::RegionKey;

use crate::{NAME, libraries, names};

/// Bytes of messages that can be sent without a completion.
pub(crate) const INJECT_SIZE: usize = 1024;
/// Operations of an endpoint at a time. There is no limit but memory.
const SIZE: usize = 1 << 16;
/// Pieces of memory of one operation.
pub(crate) const IOV_LIMIT: usize = 16;
/// Bytes of the largest message.
const MAX_MESSAGE: usize = 1 << 40;

const PRIMARY: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
const ONE_SIDED: u64 = FI_RMA | FI_ATOMIC;
const DIRECTIONS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const SEND_RECEIVE: u64 = FI_SEND | FI_RECV;
/// Processes of this machine are those of the same and of other nodes: Open MPI asks for both.
const PLACES: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const SECONDARY: u64 = FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV | PLACES;
const ALL: u64 = PRIMARY | SEND_RECEIVE | DIRECTIONS | SECONDARY;
/// What an application has to know of registered memory: virtual addresses, of memory that exists,
/// under keys of the provider.
const MEMORY: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
/// The first version in which an application lists what it knows of registered memory.
const WITH_MODES: u32 = make_version(1, 5);
const OP_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MULTI_RECV;
/// Messages keep their order, and transfers are complete before the next operation begins.
const ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_WAR
    | FI_ORDER_WAW
    | FI_ORDER_SAR
    | FI_ORDER_SAW
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAR
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;

/// A restriction that the hints make, and the provider does not meet.
type Unmet = &'static str;

fn require(is_met: bool, what: Unmet) -> Result<(), Unmet> {
    if is_met { Ok(()) } else { Err(what) }
}

/// Returns whether a name of the hints is absent or that of this provider.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn is_own_name(name: *const c_char) -> bool {
    // SAFETY: by this function's contract.
    name.is_null() || unsafe { CStr::from_ptr(name) } == NAME
}

/// Checks the hints.
///
/// # Safety
/// As `fi_getinfo`: an entry with its attributes, each of which may be null.
unsafe fn check(hints: &fi_info, version: u32) -> Result<(), Unmet> {
    require(hints.caps & !ALL == 0, "capabilities")?;
    require(matches!(hints.addr_format, FI_FORMAT_UNSPEC), "the format of addresses")?;
    // SAFETY: by this function's contract, here and below.
    if let Some(endpoint) = unsafe { hints.ep_attr.as_ref() } {
        require(matches!(endpoint.r#type, FI_EP_UNSPEC | FI_EP_RDM), "the type of endpoint")?;
        require(endpoint.protocol == FI_PROTO_UNSPEC, "the protocol")?;
        require(endpoint.max_msg_size <= MAX_MESSAGE, "the size of messages")?;
        require(endpoint.msg_prefix_size == 0 && endpoint.auth_key_size == 0, "prefixes or keys")?;
        let contexts = [endpoint.tx_ctx_cnt, endpoint.rx_ctx_cnt];
        require(contexts.into_iter().all(|count| count <= 1), "contexts of an endpoint")?;
    }
    // SAFETY: as above.
    if let Some(transmit) = unsafe { hints.tx_attr.as_ref() } {
        require(transmit.caps & !ALL == 0, "capabilities to transmit")?;
        require(transmit.op_flags & !OP_FLAGS == 0, "flags of operations")?;
        require(transmit.msg_order & !ORDER == 0, "the order of messages")?;
        require(transmit.inject_size <= INJECT_SIZE, "the size of injected messages")?;
        require(
            transmit.size <= SIZE && transmit.iov_limit <= IOV_LIMIT,
            "the number of operations or pieces",
        )?;
    }
    // SAFETY: as above.
    if let Some(receive) = unsafe { hints.rx_attr.as_ref() } {
        require(receive.caps & !ALL == 0, "capabilities to receive")?;
        require(receive.op_flags & !OP_FLAGS == 0, "flags of receives")?;
        require(receive.msg_order & !ORDER == 0, "the order of receives")?;
        require(receive.size <= SIZE && receive.iov_limit <= IOV_LIMIT, "the number of receives or pieces")?;
    }
    // SAFETY: as above.
    if let Some(domain) = unsafe { hints.domain_attr.as_ref() } {
        // SAFETY: as above.
        require(unsafe { is_own_name(domain.name) }, "the name of the domain")?;
        require(domain.cq_data_size <= size_of::<u64>(), "the size of immediate data")?;
        require(domain.mr_key_size <= size_of::<u64>(), "the size of keys")?;
        require(domain.caps & !PLACES == 0, "capabilities of the domain")?;
        require(domain.auth_key_size == 0, "keys of authorization")?;
        let knows = memory_mode(domain.mr_mode, version).is_some();
        require(hints.caps & ONE_SIDED == 0 || knows, "registered memory of another kind")?;
    }
    // SAFETY: as above.
    if let Some(fabric) = unsafe { hints.fabric_attr.as_ref() } {
        // SAFETY: as above.
        require(unsafe { is_own_name(fabric.name) }, "the name of the fabric")?;
    }
    Ok(())
}

/// Returns the kind of registered memory for an application that knows the kinds of `mode`, or
/// `None` if it does not know that of the provider.
fn memory_mode(mode: c_int, version: u32) -> Option<c_int> {
    let is_basic = mode & FI_MR_BASIC != 0 || mode == 0 && version < WITH_MODES;
    if is_basic { Some(FI_MR_BASIC) } else { (mode & MEMORY == MEMORY).then_some(MEMORY) }
}

/// Returns the capabilities that are offered for those of the hints. `knows_memory` is whether the
/// application can use registered memory of this provider.
fn capabilities(asked: u64, knows_memory: bool) -> u64 {
    let either = |asked: u64, all: u64| if asked & all == 0 { all } else { asked & all };
    let mut caps = match asked & PRIMARY {
        0 => {
            let left_out = if knows_memory { 0 } else { ONE_SIDED };
            PRIMARY & !left_out | FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV
        }
        primary => primary | asked & SECONDARY,
    };
    if caps & (FI_MSG | FI_TAGGED) != 0 {
        caps |= either(asked, SEND_RECEIVE);
    }
    if caps & ONE_SIDED != 0 {
        caps |= either(asked, DIRECTIONS);
    }
    caps | PLACES
}

/// Fills an entry that libfabric has allocated.
///
/// # Safety
/// `info` has all attributes. As [`check`] for the hints.
unsafe fn fill(info: &mut fi_info, hints: Option<&fi_info>, version: u32) {
    // SAFETY: by this function's contract.
    let asked_domain = hints.and_then(|hints| unsafe { hints.domain_attr.as_ref() });
    let mode = asked_domain.map_or(Some(MEMORY), |asked| memory_mode(asked.mr_mode, version));
    let caps = capabilities(hints.map_or(0, |hints| hints.caps), mode.is_some());
    info.caps = caps;
    // SAFETY: `info` was allocated with all attributes; those of the hints are valid or null. Names
    // are freed by `free`.
    unsafe {
        let asked_transmit = hints.and_then(|hints| hints.tx_attr.as_ref());
        let asked_receive = hints.and_then(|hints| hints.rx_attr.as_ref());
        let endpoint = &mut *info.ep_attr;
        endpoint.r#type = FI_EP_RDM;
        endpoint.protocol = FI_PROTO_UNSPEC;
        endpoint.protocol_version = 1;
        endpoint.max_msg_size = MAX_MESSAGE;
        endpoint.max_order_raw_size = MAX_MESSAGE;
        endpoint.max_order_war_size = MAX_MESSAGE;
        endpoint.max_order_waw_size = MAX_MESSAGE;
        // All bits of a tag are one field.
        endpoint.mem_tag_format = 0xaaaa_aaaa_aaaa_aaaa;
        (endpoint.tx_ctx_cnt, endpoint.rx_ctx_cnt) = (1, 1);
        let transmit = &mut *info.tx_attr;
        let of_receives =
            FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE;
        transmit.caps = caps & !of_receives & !PLACES;
        transmit.op_flags = asked_transmit.map_or(0, |asked| asked.op_flags);
        transmit.msg_order = ORDER;
        transmit.comp_order = FI_ORDER_NONE;
        transmit.inject_size = INJECT_SIZE;
        (transmit.size, transmit.iov_limit, transmit.rma_iov_limit) = (SIZE, IOV_LIMIT, IOV_LIMIT);
        let receive = &mut *info.rx_attr;
        receive.caps = caps & !(FI_SEND | FI_READ | FI_WRITE) & !PLACES;
        receive.op_flags = asked_receive.map_or(0, |asked| asked.op_flags);
        receive.msg_order = ORDER;
        receive.comp_order = FI_ORDER_NONE;
        (receive.size, receive.iov_limit) = (SIZE, IOV_LIMIT);
        let domain = &mut *info.domain_attr;
        domain.name = libc::strdup(NAME.as_ptr());
        let threading = asked_domain.map_or(FI_THREAD_UNSPEC, |asked| asked.threading);
        domain.threading = if threading == FI_THREAD_UNSPEC { FI_THREAD_SAFE } else { threading };
        // A thread for it is started only if the application asks.
        let asked = asked_domain.map(|asked| [asked.control_progress, asked.data_progress]);
        let is_automatic = asked.is_some_and(|asked| asked.contains(&FI_PROGRESS_AUTO));
        let progress = if is_automatic { FI_PROGRESS_AUTO } else { FI_PROGRESS_MANUAL };
        (domain.control_progress, domain.data_progress) = (progress, progress);
        domain.resource_mgmt = FI_RM_ENABLED;
        let kind = asked_domain.map_or(FI_AV_UNSPEC, |asked| asked.av_type);
        domain.av_type = kind;
        domain.mr_mode = if caps & ONE_SIDED == 0 { 0 } else { mode.unwrap_or(MEMORY) };
        (domain.mr_key_size, domain.mr_iov_limit, domain.mr_cnt) = (size_of::<u64>(), 1, RegionKey::MOST);
        domain.cq_data_size = size_of::<u64>();
        (domain.cq_cnt, domain.ep_cnt, domain.cntr_cnt) = (1 << 16, 1 << 10, 1 << 16);
        (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (1 << 10, 1 << 10);
        // More than one makes MPICH use scalable endpoints.
        (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (1, 1);
        domain.caps = PLACES;
        let fabric = &mut *info.fabric_attr;
        fabric.name = libc::strdup(NAME.as_ptr());
        fabric.prov_version = make_version(0, 1);
        fabric.api_version = version;
        if libraries().iter().all(|library| library.version() >= make_version(2, 5)) {
            let added = info.domain_attr.cast::<fi_domain_attr_2_5>();
            ((*added).max_cntr_value, (*added).max_err_cntr_value) = (u64::MAX, u64::MAX);
        }
    }
}

/// Returns the address of the endpoint to be made, and that of its peer, as far as names or hints
/// say.
///
/// # Safety
/// As `fi_getinfo`.
unsafe fn addresses(
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: Option<&fi_info>,
) -> Result<(Option<LinkAddress>, Option<LinkAddress>), Unmet> {
    let builder = names::builder().ok_or("an address: the settings of umf cannot be used")?;
    // SAFETY: by this function's contract.
    let (named, source, destination) = unsafe {
        let hinted = hints.map_or(Ok((None, None)), |hints| {
            let source = names::in_entry(hints.src_addr, hints.src_addrlen)?;
            Ok((source, names::in_entry(hints.dest_addr, hints.dest_addrlen)?))
        });
        let (source, destination) = hinted?;
        (names::find(&builder, node, service)?, source, destination)
    };
    let is_source = flags & FI_SOURCE != 0;
    let source = if is_source { named.or(source) } else { source };
    let destination = if is_source { destination } else { named.or(destination) };
    // Otherwise an address that the first endpoint of this entry gets.
    Ok((source.or_else(|| builder.unique_address().ok()), destination))
}

pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    list: *mut *mut fi_info,
) -> c_int {
    // SAFETY: hints are null or an entry with its attributes.
    let hints = unsafe { hints.as_ref() };
    // SAFETY: as above.
    let checked = hints.map_or(Ok(()), |hints| unsafe { check(hints, version) });
    // SAFETY: the names are null or C strings.
    let addresses = checked.and_then(|()| unsafe { addresses(node, service, flags, hints) });
    let (source, destination) = match addresses {
        Ok(addresses) => addresses,
        Err(what) => {
            tracing::debug!(what, "libfabric: the hints ask for what umf does not offer");
            return -FI_ENODATA;
        }
    };
    let Some(library) = libraries().last() else { return -FI_ENODATA };
    let info = library.fi_allocinfo();
    // SAFETY: the library has allocated the entry with its attributes, and `list` can be written.
    unsafe {
        let Some(entry) = info.as_mut() else { return -FI_ENOMEM };
        fill(entry, hints, version);
        (entry.src_addr, entry.src_addrlen) = names::to_entry(source.as_ref());
        (entry.dest_addr, entry.dest_addrlen) = names::to_entry(destination.as_ref());
        *list = info;
    }
    FI_SUCCESS
}
