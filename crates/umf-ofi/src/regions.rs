//! Memory regions: memory that other endpoints read and write. The key of a region is the same for
//! all endpoints of its domain.

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libc::iovec;
use libfabric_sys::*;
use umf_link::mesh::{RegionKey, Registrar};
use umf_link::{Destination, Memory, Registration, RemoteAccess};

use crate::conversions::refuse;
use crate::domain::{Domain, DomainObject};
use crate::object::{Boxed, closed_by};
use crate::preloaded::PreloadedMemory;

/// The regions and the endpoints of a domain.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// The region of each slot.
    slots: Vec<Option<Weak<Region>>>,
    generation: u64,
    /// What registers memory for the peers of each endpoint.
    registrars: Vec<Registrar>,
    preloaded: PreloadedMemory,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Region {
    domain: Arc<Domain>,
    /// `None` for memory that only its own process uses.
    key: Option<RegionKey>,
    base: usize,
    length: usize,
    access: Option<RemoteAccess>,
    /// The block of a preloaded `malloc` that holds it.
    block: Option<Arc<Memory<'static>>>,
    registrations: Mutex<Vec<Registration<'static>>>,
}

pub(crate) type RegionObject = Boxed<fid_mr, Region>;

pub(crate) static OPS: fi_ops_mr =
    fi_ops_mr { reg: Some(reg), regv: Some(regv), regattr: Some(regattr), ..fi_ops_mr::UNSUPPORTED };
static OBJECT: fi_ops = fi_ops { bind: Some(bind), control: Some(control), ..closed_by(close) };

impl Regions {
    pub(crate) fn new() -> Self {
        Self { preloaded: PreloadedMemory::new(), ..Self::default() }
    }
}

impl Domain {
    fn regions(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers all regions for the peers of an endpoint, too.
    pub(crate) fn add_endpoint(&self, registrar: Registrar) -> Result<(), umf_link::Error> {
        let mut regions = self.regions();
        for region in regions.slots.iter().flatten().filter_map(Weak::upgrade) {
            region.register(&registrar)?;
        }
        regions.registrars.push(registrar);
        Ok(())
    }

    pub(crate) fn remove_endpoint(&self, registrar: &Registrar) {
        let mut regions = self.regions();
        regions.registrars.retain(|known| !known.is_same(registrar));
        for region in regions.slots.iter().flatten().filter_map(Weak::upgrade) {
            let mut registrations = region.registrations.lock().unwrap_or_else(PoisonError::into_inner);
            registrations.retain(|registration| !registrar.has_registered(registration));
        }
    }
}

impl Region {
    fn register(&self, registrar: &Registrar) -> Result<(), umf_link::Error> {
        let (Some(key), Some(access)) = (self.key, self.access) else { return Ok(()) };
        let memory = [(core::ptr::with_exposed_provenance_mut(self.base), self.length)];
        // SAFETY: the application keeps the memory until it closes the region, and knows that other
        // processes use it. The slot of the key is that of this region.
        let registration = unsafe {
            let memory = Destination::from_raw(&memory).within(self.block.clone());
            registrar.register(key, memory, access)?
        };
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner).push(registration);
        Ok(())
    }
}

/// Registers memory.
///
/// # Safety
/// As `fi_mr_reg`.
unsafe fn register(
    domain: *mut fid,
    (base, length): (*const c_void, usize),
    access: u64,
    context: *mut c_void,
    flags: u64,
    object: *mut *mut fid_mr,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: an open domain.
    let domain = unsafe { DomainObject::part(domain.cast()) };
    let remote = match (access & FI_REMOTE_READ != 0, access & FI_REMOTE_WRITE != 0) {
        (true, true) => Some(RemoteAccess::GetPut),
        (true, false) => Some(RemoteAccess::Get),
        (false, true) => Some(RemoteAccess::Put),
        (false, false) => None,
    };
    let mut regions = domain.regions();
    let mut place = None;
    if remote.is_some() {
        let is_free =
            |slot: &Option<Weak<Region>>| slot.as_ref().is_none_or(|region| region.strong_count() == 0);
        let slot = regions.slots.iter().position(is_free).unwrap_or(regions.slots.len());
        if slot == RegionKey::MOST {
            tracing::error!(
                "libfabric: cannot register more than {} regions at a time; close some",
                RegionKey::MOST
            );
            return -FI_ENOMEM;
        }
        regions.generation += 1;
        place = Some((slot, RegionKey::new(slot, regions.generation)));
    }
    let memory = (base.cast_mut().cast(), length);
    let block = if remote.is_some() { regions.preloaded.around(&[memory]) } else { None };
    let region = Arc::new(Region {
        domain: Arc::clone(domain),
        key: place.map(|(_, key)| key),
        base: base.expose_provenance(),
        length,
        access: remote,
        block,
        registrations: Mutex::default(),
    });
    for registrar in &regions.registrars {
        if let Err(error) = region.register(registrar) {
            return refuse("registering memory", &error) as c_int;
        }
    }
    if let Some((slot, _)) = place {
        if slot == regions.slots.len() {
            regions.slots.push(None);
        }
        regions.slots[slot] = Some(Arc::downgrade(&region));
    }
    drop(regions);
    let key = region.key.map_or(FI_KEY_NOTAVAIL, RegionKey::number);
    let fid = fid { fclass: FI_CLASS_MR, context, ops: OBJECT.as_table() };
    let opened = fid_mr { fid, mem_desc: core::ptr::null_mut(), key };
    // SAFETY: the pointer is valid for a write.
    unsafe { *object = RegionObject::leak(opened, region) };
    FI_SUCCESS
}

unsafe extern "C" fn reg(
    domain: *mut fid,
    buffer: *const c_void,
    length: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    flags: u64,
    object: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: by the interface.
    unsafe { register(domain, (buffer, length), access, context, flags, object) }
}

unsafe extern "C" fn regv(
    domain: *mut fid,
    list: *const iovec,
    count: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    flags: u64,
    object: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // One piece, as `mr_iov_limit` says.
    if count != 1 {
        return -FI_EINVAL;
    }
    // SAFETY: by the interface.
    unsafe { register(domain, ((*list).iov_base, (*list).iov_len), access, context, flags, object) }
}

unsafe extern "C" fn regattr(
    domain: *mut fid,
    attributes: *const fi_mr_attr,
    flags: u64,
    object: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: by the interface, here and below.
    let attributes = unsafe { &*attributes };
    // Memory of devices is not offered, so that `iface` is not read.
    if attributes.iov_count != 1 || flags & FI_MR_DMABUF != 0 {
        return -FI_EINVAL;
    }
    // SAFETY: as above.
    unsafe {
        let memory = ((*attributes.mr_iov).iov_base.cast_const(), (*attributes.mr_iov).iov_len);
        register(domain, memory, attributes.access, attributes.context, flags, object)
    }
}

unsafe extern "C" fn bind(_region: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: an open object.
    match unsafe { (*other).fclass } {
        // Regions are of all endpoints.
        FI_CLASS_EP => FI_SUCCESS,
        _ => -FI_EINVAL,
    }
}

unsafe extern "C" fn control(_region: *mut fid, command: c_int, _argument: *mut c_void) -> c_int {
    if command == FI_ENABLE { FI_SUCCESS } else { -FI_ENOSYS }
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // Under the lock, so that no endpoint registers it meanwhile.
    // SAFETY: an open region.
    let domain = Arc::clone(unsafe { &RegionObject::part(object.cast()).domain });
    let regions = domain.regions();
    // SAFETY: memory regions alone have this operation.
    let closed = unsafe { RegionObject::close(object) };
    drop(regions);
    closed
}
