//! Drivers and devices: what there is, and what it is.

use core::ffi::CStr;

use level_zero_sys::*;

use super::Answer;

/// Starts the drivers, and lists them.
pub(crate) fn drivers(api: &Api) -> Answer<Vec<ze_driver_handle_t>> {
    // SAFETY: see the module above.
    unsafe { api.zeInit(0) }?;
    // SAFETY: as above; the list has room for as many as `count` says.
    listed(ze_driver_handle_t::NULL, |count, list| unsafe { api.zeDriverGet(count, list) })
}

/// The devices of a driver.
pub(crate) fn devices(api: &Api, driver: ze_driver_handle_t) -> Answer<Vec<ze_device_handle_t>> {
    // SAFETY: as above.
    listed(ze_device_handle_t::NULL, |count, list| unsafe { api.zeDeviceGet(driver, count, list) })
}

/// The parts of a device.
pub(crate) fn parts(api: &Api, device: ze_device_handle_t) -> Answer<Vec<ze_device_handle_t>> {
    // SAFETY: as above.
    listed(ze_device_handle_t::NULL, |count, list| unsafe { api.zeDeviceGetSubDevices(device, count, list) })
}

/// A new context.
pub(crate) fn create_context(api: &Api, driver: ze_driver_handle_t) -> Answer<ze_context_handle_t> {
    let desc = ze_context_desc_t::default();
    let mut context = ze_context_handle_t::NULL;
    // SAFETY: as above.
    unsafe { api.zeContextCreate(driver, &raw const desc, &raw mut context) }?;
    Ok(context)
}

/// Destroys a context in which nothing is left.
pub(crate) fn destroy_context(api: &Api, context: ze_context_handle_t) -> Answer {
    // SAFETY: as above.
    unsafe { api.zeContextDestroy(context) }
}

/// The version of the specification that a driver implements.
pub(crate) fn version(api: &Api, driver: ze_driver_handle_t) -> Answer<ze_api_version_t> {
    let mut version = ze_api_version_t(0);
    // SAFETY: as above.
    unsafe { api.zeDriverGetApiVersion(driver, &raw mut version) }?;
    Ok(version)
}

/// The names of a driver's extensions.
pub(crate) fn extensions(api: &Api, driver: ze_driver_handle_t) -> Answer<Vec<String>> {
    // SAFETY: as above.
    let list = listed(ze_driver_extension_properties_t::default(), |count, list| unsafe {
        api.zeDriverGetExtensionProperties(driver, count, list)
    })?;
    Ok(list.iter().map(|extension| text(&extension.name)).collect())
}

/// The policies of freeing that a driver has.
pub(crate) fn free_policies(
    api: &Api,
    driver: ze_driver_handle_t,
) -> Answer<ze_driver_memory_free_policy_ext_flags_t> {
    let mut policies = ze_driver_memory_free_ext_properties_t::default();
    let mut told = ze_driver_properties_t { pNext: (&raw mut policies).cast(), ..Default::default() };
    // SAFETY: as above.
    unsafe { api.zeDriverGetProperties(driver, &raw mut told) }?;
    Ok(policies.freePolicies)
}

/// What a device is.
pub(crate) fn properties(api: &Api, device: ze_device_handle_t) -> Answer<ze_device_properties_t> {
    let mut told = ze_device_properties_t::default();
    // SAFETY: as above.
    unsafe { api.zeDeviceGetProperties(device, &raw mut told) }?;
    Ok(told)
}

/// The groups of a device's queues.
pub(crate) fn queue_groups(
    api: &Api,
    device: ze_device_handle_t,
) -> Answer<Vec<ze_command_queue_group_properties_t>> {
    // SAFETY: as above.
    listed(ze_command_queue_group_properties_t::default(), |count, list| unsafe {
        api.zeDeviceGetCommandQueueGroupProperties(device, count, list)
    })
}

/// The memories of a device.
pub(crate) fn memories(api: &Api, device: ze_device_handle_t) -> Answer<Vec<ze_device_memory_properties_t>> {
    // SAFETY: as above.
    listed(ze_device_memory_properties_t::default(), |count, list| unsafe {
        api.zeDeviceGetMemoryProperties(device, count, list)
    })
}

/// The size of a line of a device's cache in bytes; `None` if the driver does not tell.
pub(crate) fn cache_line(api: &Api, device: ze_device_handle_t) -> Answer<Option<usize>> {
    let mut line = ze_device_cache_line_size_ext_t::default();
    let mut told = ze_device_cache_properties_t { pNext: (&raw mut line).cast(), ..Default::default() };
    let mut count = 1;
    // SAFETY: as above.
    unsafe { api.zeDeviceGetCacheProperties(device, &raw mut count, &raw mut told) }?;
    Ok((line.cacheLineSize > 0).then_some(line.cacheLineSize))
}

/// The forms in which a device's memory may be imported and exported.
pub(crate) fn forms(api: &Api, device: ze_device_handle_t) -> Answer<ze_device_external_memory_properties_t> {
    let mut told = ze_device_external_memory_properties_t::default();
    // SAFETY: as above.
    unsafe { api.zeDeviceGetExternalMemoryProperties(device, &raw mut told) }?;
    Ok(told)
}

/// A list that is asked for twice: how long it is, and then what is in it.
fn listed<T: Copy>(empty: T, get: impl Fn(*mut u32, *mut T) -> Answer) -> Answer<Vec<T>> {
    let mut count = 0;
    get(&raw mut count, core::ptr::null_mut())?;
    let mut list = vec![empty; count as usize];
    if count > 0 {
        get(&raw mut count, list.as_mut_ptr())?;
    }
    list.truncate(count as usize);
    Ok(list)
}

/// The text in an array of characters, which may lack the zero at its end.
pub(crate) fn text(characters: &[u8]) -> String {
    let whole = CStr::from_bytes_until_nul(characters).map_or(characters, CStr::to_bytes);
    String::from_utf8_lossy(whole).into_owned()
}
