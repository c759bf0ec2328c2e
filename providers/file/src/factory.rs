//! The kinds `file`, `devdax` and `fixed` of settings.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use umf_core::settings::{ByteSize, Trusted};
use umf_core::{Error, FactoryError, Import, Provider, ProviderFactory, Visibility};

use crate::{DevDaxImport, DevDaxProvider, FileImport, FileProvider, FixedProvider};

umf_core::settings! {
    /// The keys of the kind `file`.
    pub struct FileSettings {
        /// Absolute path of the file, which is made if it is not there. Its content is not kept. Refused
        /// in ./umf.toml.
        pub path: Option<PathBuf> as Option<Trusted<PathBuf>> = None,
            "an absolute path (empty for none)" if |path| path.as_ref().is_none_or(|path| path.is_absolute());
        /// "shared" (other processes can open the memory; what is stored reaches the file) or
        /// "private" (what is stored stays in this process).
        pub visibility | "mapped": Visibility = Visibility::Shared;
    }
}

umf_core::settings! {
    /// The keys of the kind `devdax`.
    pub struct DevDaxSettings {
        /// Absolute path of the device, such as /dev/dax0.0. Refused in ./umf.toml.
        pub path: Option<PathBuf> as Option<Trusted<PathBuf>> = None,
            "an absolute path (empty for none)" if |path| path.as_ref().is_none_or(|path| path.is_absolute());
        /// How many bytes of the device are used, from its beginning, in pages of 2 MiB.
        pub size: usize as ByteSize = 0;
    }
}

umf_core::settings! {
    /// The keys of the kind `fixed`.
    pub struct FixedSettings {
        /// How many bytes are reserved at the beginning, of private memory of the host. They are all that
        /// the provider has, and stay reserved until the process ends.
        pub size: usize as ByteSize = 0;
    }
}

const NO_PATH: Error = Error::InvalidArgument { what: "path", why: "must be set for this kind" };

impl ProviderFactory for FileProvider {
    const KIND: &'static str = "file";
    type Settings = FileSettings;

    fn build(name: &str, settings: FileSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        Ok(Self::open(&settings.path.ok_or(NO_PATH)?, settings.visibility, name)?)
    }

    /// A process whose settings name a file trusts the processes that can write to such files.
    fn import(settings: &FileSettings) -> Option<Arc<dyn Import>> {
        settings.path.as_ref()?;
        Some(Arc::new(FileImport::trust_writers()))
    }
}

impl ProviderFactory for DevDaxProvider {
    const KIND: &'static str = "devdax";
    type Settings = DevDaxSettings;

    fn build(name: &str, settings: DevDaxSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        Ok(Self::open(&settings.path.ok_or(NO_PATH)?, settings.size, name)?)
    }

    fn import(settings: &DevDaxSettings) -> Option<Arc<dyn Import>> {
        settings.path.as_ref()?;
        Some(Arc::new(DevDaxImport))
    }
}

impl ProviderFactory for FixedProvider {
    const KIND: &'static str = "fixed";
    type Settings = FixedSettings;

    fn build(name: &str, settings: FixedSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        if settings.size == 0 {
            return Err(Error::InvalidArgument { what: "size", why: "must be set for this kind" }.into());
        }
        let none = core::ptr::null_mut();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let memory = unsafe { mmap_anonymous(none, settings.size, access, MapFlags::PRIVATE) };
        let memory = memory.map_err(|errno| Error::native("mmap", errno.raw_os_error()))?;
        // Regions may outlive the provider, so the memory stays.
        // SAFETY: anonymous, private, mapped for this provider alone, and never unmapped.
        Ok(unsafe { Self::new(memory.cast(), settings.size, name) }?)
    }
}
