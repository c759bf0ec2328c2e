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
        /// Absolute path of the file, which is created if it does not exist. Its content is not
        /// preserved. Refused in ./umf.toml.
        pub path: Option<PathBuf> as Option<Trusted<PathBuf>> = None,
            "an absolute path (empty for none)" if |path| path.as_ref().is_none_or(|path| path.is_absolute());
        /// "shared" (other processes can open the memory, and stores reach the file) or "private"
        /// (stores are visible to this process only).
        pub visibility | "mapped": Visibility = Visibility::Shared;
    }
}

umf_core::settings! {
    /// The keys of the kind `devdax`.
    pub struct DevDaxSettings {
        /// Absolute path of the device, such as /dev/dax0.0. Refused in ./umf.toml.
        pub path: Option<PathBuf> as Option<Trusted<PathBuf>> = None,
            "an absolute path (empty for none)" if |path| path.as_ref().is_none_or(|path| path.is_absolute());
        /// How many bytes of the device are used, from its start, in pages of 2 MiB.
        pub size: usize as ByteSize = 0;
    }
}

umf_core::settings! {
    /// The keys of the kind `fixed`.
    pub struct FixedSettings {
        /// How many bytes of private host memory are mapped when the provider is built. This is the
        /// limit of the provider. The memory stays mapped until the process exits.
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

    /// A process whose settings name a file trusts the processes that can write to it.
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
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { mmap_anonymous(none, settings.size, access, MapFlags::PRIVATE) };
        let memory = memory.map_err(|errno| Error::native("mmap", errno.raw_os_error()))?;
        // Regions may outlive the provider, so the memory is never unmapped.
        // SAFETY: the memory is anonymous, private, used only by this provider, and never unmapped.
        Ok(unsafe { Self::new(memory.cast(), settings.size, name) }?)
    }
}
