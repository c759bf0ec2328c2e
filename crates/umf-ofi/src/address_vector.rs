//! Address vector: the addresses of other endpoints, which operations name by their number. Maps
//! and tables are the same.

use core::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, PoisonError, RwLock};

use libfabric_sys::*;
use umf_link::{ADDRESS_SIZE, LinkAddress};

use crate::conversions::{copy_address, copy_text};
use crate::domain::{Domain, DomainObject};
use crate::names;
use crate::object::{Boxed, closed_by};

/// An address vector.
#[derive(Debug)]
pub(crate) struct AddressVector {
    _domain: Arc<Domain>,
    addresses: RwLock<Vec<Option<LinkAddress>>>,
}

pub(crate) type AddressVectorObject = Boxed<fid_av, AddressVector>;

impl AddressVector {
    /// Adds an address. Returns its number, or a positive error number.
    fn add(&self, address: LinkAddress) -> Result<fi_addr_t, c_int> {
        if !address.is_of_this_boot() {
            tracing::error!(
                "cannot insert the address of another machine: the provider umf joins processes of one machine; \
                 run all processes of the job there, or choose another provider (FI_PROVIDER)"
            );
            return Err(FI_EHOSTUNREACH);
        }
        // Numbers are not used again: endpoints remember the processes of theirs.
        let mut known = self.addresses.write().unwrap_or_else(PoisonError::into_inner);
        known.push(Some(address));
        Ok(known.len() as fi_addr_t - 1)
    }

    /// Returns an address by its number.
    pub(crate) fn get(&self, number: fi_addr_t) -> Option<LinkAddress> {
        let addresses = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        addresses.get(usize::try_from(number).ok()?).copied().flatten()
    }

    /// Returns the number of an address.
    pub(crate) fn find(&self, address: &LinkAddress) -> Option<fi_addr_t> {
        let addresses = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        addresses.iter().position(|known| known.as_ref() == Some(address)).map(|at| at as fi_addr_t)
    }
}

static OBJECT: fi_ops = fi_ops { bind: Some(bind), ..closed_by(close) };
static OPS: fi_ops_av = fi_ops_av {
    insert: Some(insert),
    insertsvc: Some(insert_service),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(text_of_address),
    ..fi_ops_av::UNSUPPORTED
};

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_av_attr,
    vector: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: attributes are null or valid.
    if let Some(attributes) = unsafe { attributes.as_ref() } {
        // One that processes share is not offered, nor one of another provider.
        if !attributes.name.is_null() || attributes.flags & !FI_SYMMETRIC != 0 {
            return -FI_ENOSYS;
        }
        if attributes.rx_ctx_bits != 0 {
            return -FI_EINVAL;
        }
    }
    let object = fid { fclass: FI_CLASS_AV, context, ops: OBJECT.as_table() };
    let object = fid_av { fid: object, ops: OPS.as_table() };
    // SAFETY: an open domain of this provider; the pointer is valid for a write.
    unsafe {
        let domain = Arc::clone(DomainObject::part(domain));
        let part = AddressVector { _domain: domain, addresses: RwLock::default() };
        *vector = AddressVectorObject::leak(object, Arc::new(part));
    }
    FI_SUCCESS
}

/// An event queue may be bound, and gets no events: insertions are not asynchronous.
unsafe extern "C" fn bind(_vector: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: an open object.
    if unsafe { (*other).fclass } == FI_CLASS_EQ { FI_SUCCESS } else { -FI_EINVAL }
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // SAFETY: address vectors alone have this operation.
    unsafe { AddressVectorObject::close(object) }
}

unsafe extern "C" fn insert(
    vector: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    numbers: *mut fi_addr_t,
    flags: u64,
    errors: *mut c_void,
) -> c_int {
    if flags & !(FI_MORE | FI_SYNC_ERR) != 0 {
        return -FI_EBADFLAGS;
    }
    // Such as the address that `getinfo` did not find for the name of a host.
    if addresses.is_null() && count > 0 {
        return -FI_EINVAL;
    }
    // SAFETY: an open address vector.
    let part = unsafe { AddressVectorObject::part(vector) };
    let mut inserted = 0;
    for number in 0..count {
        // SAFETY: the caller passes `count` addresses, each as long as those of `getname`.
        let bytes = unsafe {
            core::slice::from_raw_parts(addresses.cast::<u8>().add(number * ADDRESS_SIZE), ADDRESS_SIZE)
        };
        let added = LinkAddress::from_bytes(bytes)
            .map_err(|error| {
                tracing::error!(%error, "cannot insert an address");
                FI_EINVAL
            })
            .and_then(|address| part.add(address));
        inserted += c_int::from(added.is_ok());
        let (at, error) = added.map_or_else(|error| (FI_ADDR_NOTAVAIL, error), |at| (at, FI_SUCCESS));
        // SAFETY: where the pointers are not null, they have `count` entries.
        unsafe {
            if !numbers.is_null() {
                *numbers.add(number) = at;
            }
            if flags & FI_SYNC_ERR != 0 && !errors.is_null() {
                *errors.cast::<c_int>().add(number) = error;
            }
        }
    }
    inserted
}

/// Inserts the address of a service, as `getinfo` finds it.
unsafe extern "C" fn insert_service(
    vector: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    number: *mut fi_addr_t,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    let Some(builder) = names::builder() else { return -FI_EINVAL };
    // SAFETY: the names are null or C strings, and the vector is open.
    let (found, part) = unsafe { (names::find(&builder, node, service), AddressVectorObject::part(vector)) };
    let added = match found {
        Ok(Some(address)) => part.add(address),
        Ok(None) => Err(FI_EINVAL),
        Err(_) => Err(FI_EHOSTUNREACH),
    };
    if !number.is_null() {
        // SAFETY: it can be written.
        unsafe { *number = *added.as_ref().unwrap_or(&FI_ADDR_NOTAVAIL) };
    }
    c_int::from(added.is_ok())
}

unsafe extern "C" fn remove(
    vector: *mut fid_av,
    numbers: *mut fi_addr_t,
    count: usize,
    _flags: u64,
) -> c_int {
    if numbers.is_null() || count == 0 {
        return FI_SUCCESS;
    }
    // SAFETY: an open address vector, and `count` numbers.
    let (part, numbers) =
        unsafe { (AddressVectorObject::part(vector), core::slice::from_raw_parts(numbers, count)) };
    let mut known = part.addresses.write().unwrap_or_else(PoisonError::into_inner);
    for number in numbers {
        match usize::try_from(*number).ok().and_then(|at| known.get_mut(at)) {
            Some(address @ Some(_)) => *address = None,
            _ => return -FI_EINVAL,
        }
    }
    FI_SUCCESS
}

unsafe extern "C" fn lookup(
    vector: *mut fid_av,
    number: fi_addr_t,
    buffer: *mut c_void,
    length: *mut usize,
) -> c_int {
    // SAFETY: an open address vector.
    let Some(address) = (unsafe { AddressVectorObject::part(vector) }).get(number) else { return -FI_EINVAL };
    // SAFETY: by the interface.
    unsafe { copy_address(&address.to_bytes(), buffer, length) };
    FI_SUCCESS
}

unsafe extern "C" fn text_of_address(
    _vector: *mut fid_av,
    address: *const c_void,
    buffer: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    if address.is_null() {
        return core::ptr::null();
    }
    // SAFETY: an address as long as those of `getname`.
    let bytes = unsafe { core::slice::from_raw_parts(address.cast::<u8>(), ADDRESS_SIZE) };
    // The socket and not the text of an address that has a key.
    let text = LinkAddress::from_bytes(bytes).map_or_else(
        |error| error.to_string(),
        |address| if address.is_secret() { address.socket() } else { address.to_string() },
    );
    // SAFETY: `buffer` has `length` bytes.
    unsafe {
        copy_text(&text, buffer, *length);
        *length = text.len() + 1;
    }
    buffer
}
