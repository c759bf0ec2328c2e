//! DLPack 1.3, and the form before version 1: blocks and mappings as one-dimensional tensors of
//! bytes.
//!
//! A tensor owns a share of the memory and no Python object. Its deleter may therefore run in any
//! thread, without the interpreter's lock, and after the interpreter has ended.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use dlpack_ffi::{
    DLDataType, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
    DLPACK_FLAG_BITMASK_IS_COPIED, DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION,
    DLPackVersion, DLTensor,
};
use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::device::{CPU, DeviceMemory, DlDevice, block_device, mapping_device};
use crate::errors::from_umf;
use crate::handle::{CHECKED_COPY, Mapping};
use crate::pool::Block;

/// A structure that a capsule passes to the consumer.
trait Managed: Sized {
    /// The name of the capsule until its consumer renames it.
    const NAME: &'static CStr;

    fn new(tensor: DLTensor, flags: u32) -> Self;
    fn tensor(&mut self) -> &mut DLTensor;
}

impl Managed for DLManagedTensorVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: DLTensor, flags: u32) -> Self {
        Self {
            version: DLPackVersion { major: DLPACK_MAJOR_VERSION, minor: DLPACK_MINOR_VERSION },
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete::<Self>),
            flags: flags.into(),
            dl_tensor: tensor,
        }
    }

    fn tensor(&mut self) -> &mut DLTensor {
        &mut self.dl_tensor
    }
}

impl Managed for DLManagedTensor {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: DLTensor, _flags: u32) -> Self {
        Self { dl_tensor: tensor, manager_ctx: std::ptr::null_mut(), deleter: Some(delete::<Self>) }
    }

    fn tensor(&mut self) -> &mut DLTensor {
        &mut self.dl_tensor
    }
}

/// What keeps the memory of a tensor: a share of a block or a mapping, or a copy.
type Keeper = Arc<dyn Any + Send + Sync>;

/// A tensor that was passed to a consumer. The consumer has a pointer to its first field.
#[repr(C)]
struct Exported<M> {
    managed: M,
    shape: i64,
    stride: i64,
    _keeper: Keeper,
}

/// The deleter of a tensor.
///
/// # Safety
/// `managed` comes from [`export`], and is not used again. Null is ignored.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    if !managed.is_null() {
        // SAFETY: the first field of a boxed `Exported<M>`, by this function's contract.
        drop(unsafe { Box::from_raw(managed.cast::<Exported<M>>()) });
    }
}

/// The destructor of a capsule: deletes the tensor unless a consumer has renamed the capsule.
///
/// # Safety
/// Python passes a capsule of [`export`].
unsafe extern "C" fn destroy<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter is attached, and the capsule is live. A capsule with this name has
    // the pointer that `export` gave it, and no consumer owns that.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast::<M>());
        }
    }
}

/// Returns a capsule with a tensor.
fn export<M: Managed>(
    python: Python<'_>,
    tensor: DLTensor,
    shape: i64,
    flags: u32,
    keeper: Keeper,
) -> PyResult<Py<PyAny>> {
    let managed = M::new(tensor, flags);
    let exported = Box::into_raw(Box::new(Exported { managed, shape, stride: 1, _keeper: keeper }));
    // SAFETY: the box is live, and this function is its only user. The name is static, and the
    // destructor is for this type.
    unsafe {
        let (shape, strides) = (&raw mut (*exported).shape, &raw mut (*exported).stride);
        let tensor = (*exported).managed.tensor();
        (tensor.shape, tensor.strides) = (shape, strides);
        let capsule = ffi::PyCapsule_New(exported.cast(), M::NAME.as_ptr(), Some(destroy::<M>));
        let capsule = Bound::from_owned_ptr_or_err(python, capsule);
        if capsule.is_err() {
            delete(exported.cast::<M>());
        }
        Ok(capsule?.unbind())
    }
}

/// `DLDataTypeCode::kDLUInt`, in the width that tensors have it.
const UNSIGNED: u8 = 1;

/// What a consumer asks for.
struct Request<'py> {
    stream: Option<Bound<'py, PyAny>>,
    max_version: Option<(u32, u32)>,
    device: Option<DlDevice>,
    copy: Option<bool>,
}

const fn device_name(device: DlDevice) -> &'static str {
    match device.0 {
        1 => "the CPU",
        2 => "a CUDA device",
        3 => "pinned CUDA memory",
        13 => "managed CUDA memory",
        14 => "a oneAPI device",
        _ => "a device of another kind",
    }
}

/// A line of a copy, so that the copy is aligned as numpy likes it.
#[repr(align(64))]
#[derive(Clone)]
struct Line(#[expect(dead_code, reason = "read by the consumer")] [u8; 64]);

/// Copies the memory to the host.
fn copied<T: DeviceMemory>(python: Python<'_>, memory: &T) -> PyResult<(Keeper, *mut c_void)> {
    python
        .detach(|| {
            let length = memory.size();
            let (mut lines, count) = (Vec::new(), length.div_ceil(64));
            if length >= CHECKED_COPY {
                let checked = umf_os::AvailableMemory::find().check(length, "a copy of the tensor");
                checked.map_err(|error| from_umf(error.into()))?;
            }
            lines
                .try_reserve_exact(count)
                .map_err(|_| PyMemoryError::new_err("no memory for a copy of the tensor"))?;
            lines.resize(count, Line([0; 64]));
            let start = lines.as_mut_ptr();
            // SAFETY: the vector has that many bytes.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), length) };
            memory.copy_out(0, bytes).map_err(from_umf)?;
            Ok((Arc::new(lines) as Keeper, Start(start.cast())))
        })
        .map(|(keeper, Start(start))| (keeper, start))
}

/// An address that crosses a closure which runs without the interpreter's lock.
struct Start(*mut c_void);

// SAFETY: only passed on.
unsafe impl Send for Start {}

/// Returns the capsule that a consumer asks for.
fn capsule<T: DeviceMemory>(
    python: Python<'_>,
    memory: Arc<T>,
    own: DlDevice,
    request: &Request<'_>,
) -> PyResult<Py<PyAny>> {
    let refuse = |text: String| Err(PyBufferError::new_err(text));
    let wanted = request.device.unwrap_or(own);
    let is_viewable = wanted == own || wanted == CPU && memory.for_cpu();
    if !is_viewable && wanted != CPU {
        return refuse(format!(
            "cannot export the memory to DLPack device {wanted:?}: it is on {} {own:?}, and is copied to the CPU only; \
             ask for {own:?} or {CPU:?}",
            device_name(own)
        ));
    }
    let copies = request.copy.unwrap_or(!is_viewable);
    if copies && wanted != CPU {
        return refuse(format!(
            "cannot copy within {}: umf copies to the CPU only; pass copy=None, or dl_device={CPU:?}",
            device_name(own)
        ));
    }
    if !copies && !is_viewable {
        return refuse(format!(
            "cannot export the memory to the CPU without a copy: it is on {}; pass copy=None",
            device_name(own)
        ));
    }
    match &request.stream {
        Some(_) if wanted == CPU => {
            return refuse("a stream was passed for memory of the CPU; pass stream=None".to_owned());
        }
        // Copies by umf are complete when they return, so that no stream has to wait.
        Some(stream) if wanted.0 == 2 && stream.extract::<i64>().is_ok_and(|stream| stream == 0) => {
            return refuse(
                "stream 0 is ambiguous; pass 1 for the default stream, 2 for that of the thread".to_owned(),
            );
        }
        _ => {}
    }
    let is_versioned = request.max_version.is_some_and(|(major, _)| major >= 1);
    let is_read_only = memory.for_reading_only() && !copies;
    if is_read_only && !is_versioned {
        return refuse(
            "cannot export read-only memory in the form before DLPack 1.0, which cannot say so; use a consumer that \
             passes max_version=(1, 0), or open the handle for writing"
                .to_owned(),
        );
    }
    let length = i64::try_from(memory.size()).unwrap_or(i64::MAX);
    let (keeper, data) = if copies {
        copied(python, &*memory)?
    } else {
        let address = usize::try_from(memory.base()).unwrap_or(0);
        (memory as Keeper, std::ptr::with_exposed_provenance_mut(address))
    };
    let tensor = DLTensor {
        data,
        device: DLDevice { device_type: DLDeviceType(wanted.0), device_id: wanted.1 },
        ndim: 1,
        dtype: DLDataType { code: UNSIGNED, bits: 8, lanes: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    if !is_versioned {
        return export::<DLManagedTensor>(python, tensor, length, 0, keeper);
    }
    let flags = if copies { DLPACK_FLAG_BITMASK_IS_COPIED } else { 0 }
        | if is_read_only { DLPACK_FLAG_BITMASK_READ_ONLY } else { 0 };
    export::<DLManagedTensorVersioned>(python, tensor, length, flags, keeper)
}

#[pymethods]
impl Block {
    /// The type and the number of the device that has the memory, as DLPack defines them.
    fn __dlpack_device__(&self) -> PyResult<DlDevice> {
        block_device(&*self.memory.share()?)
    }

    /// Exports the block as a one-dimensional tensor of bytes: see the DLPack protocol. The memory
    /// is kept until the consumer deletes the tensor, even if the block is freed before.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__(
        &self,
        python: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<DlDevice>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let block = self.memory.share()?;
        let own = block_device(&block)?;
        capsule(python, block, own, &Request { stream, max_version, device: dl_device, copy })
    }
}

#[pymethods]
impl Mapping {
    /// The type and the number of the device that has the memory, as DLPack defines them.
    fn __dlpack_device__(&self) -> PyResult<DlDevice> {
        mapping_device(&*self.memory.share()?, &self.handle)
    }

    /// Exports the memory as a one-dimensional tensor of bytes: see the DLPack protocol. The
    /// mapping stays open until the consumer deletes the tensor.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__(
        &self,
        python: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<DlDevice>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let mapping = self.memory.share()?;
        let own = mapping_device(&mapping, &self.handle)?;
        capsule(python, mapping, own, &Request { stream, max_version, device: dl_device, copy })
    }
}
