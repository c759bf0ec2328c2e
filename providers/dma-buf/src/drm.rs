//! [`DrmCard`]: dma-bufs from a graphics driver, as dumb buffers.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use umf_core::{Error, Result};

use crate::buffer::DmaBuf;
use crate::source::{self, Remedies};
use crate::sys::{self, drm};

const REMEDIES: Remedies = Remedies {
    what: "this graphics device",
    call: "open of a graphics device",
    absent: "this system: look in /dev/dri for those that there are (load the driver, or --device /dev/dri for a container)",
    refused: "cards belong to the groups video and render: join them (ls -l /dev/dri), or allow the device in the container",
};

const NO_DRIVER: Error = Error::NotSupported {
    what: "a graphics device with this driver",
    owner: "this system: `umf info` lists the drivers of those in /dev/dri (modprobe vgem for one without hardware)",
    native: 0,
};

/// A device of a graphics driver. Its dumb buffers are plain memory that the driver can show, and that others import.
/// Thread-safe.
///
/// Dumb buffers are made on cards (`/dev/dri/card0`); most drivers refuse them on render nodes. Cards change their numbers from boot to
/// boot: name the driver rather than the device.
#[derive(Debug)]
pub struct DrmCard {
    device: OwnedFd,
    driver: String,
}

impl DrmCard {
    /// Where devices are.
    pub const FOLDER: &str = "/dev/dri";

    /// Opens a device by its path.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if there is none, [`Error::Native`] if this process may not use it; with what to do.
    pub fn open(path: &Path) -> Result<Self> {
        let device = sys::open_device(path).map_err(|errno| source::open_error(errno, &REMEDIES))?;
        drm::drop_master(device.as_fd());
        let driver = drm::driver(device.as_fd()).map_err(|errno| match errno {
            Errno::NOTTY | Errno::INVAL => {
                Error::InvalidArgument { what: "graphics device", why: "is none: take one in /dev/dri" }
            }
            errno => Error::native("ioctl(DRM_IOCTL_VERSION)", errno.raw_os_error()),
        })?;
        Ok(Self { device, driver })
    }

    /// Opens the first card whose driver has this name, `vgem` for one, or else the first render node.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if there is none, [`Error::Native`] if one that may be it cannot be opened.
    pub fn with_driver(driver: &str) -> Result<Self> {
        let mut refused = None;
        for path in Self::paths() {
            match Self::open(&path) {
                Ok(card) if card.driver == driver => return Ok(card),
                Ok(_) => {}
                Err(error @ Error::Native { .. }) => refused = refused.or(Some(error)),
                Err(_) => {}
            }
        }
        Err(refused.unwrap_or(NO_DRIVER))
    }

    /// The devices of this machine: cards first, then render nodes.
    #[must_use]
    pub fn paths() -> Vec<PathBuf> {
        let entries = std::fs::read_dir(Self::FOLDER).into_iter().flatten().flatten();
        let number = |name: &str| -> Option<(bool, u32)> {
            let card = name.strip_prefix("card").and_then(|number| number.parse().ok());
            let render = name.strip_prefix("renderD").and_then(|number| number.parse().ok());
            card.map(|number| (false, number)).or(render.map(|number| (true, number)))
        };
        let mut found: Vec<_> =
            entries.filter_map(|entry| Some((number(entry.file_name().to_str()?)?, entry.path()))).collect();
        found.sort();
        found.into_iter().map(|(_, path)| path).collect()
    }

    /// The name of its driver.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }

    pub(crate) fn make(&self, size: usize) -> Result<DmaBuf> {
        let none = |native| Error::OutOfMemory { size, owner: "the graphics driver", native };
        // Dumb buffers are counted in lines of 4096 bytes.
        let lines = u32::try_from(size.div_ceil(4096)).map_err(|_| none(0))?;
        let card = self.device.as_fd();
        let (handle, given) = drm::create_dumb(card, lines).map_err(|errno| match errno {
            Errno::NOMEM | Errno::NOSPC => none(errno.raw_os_error()),
            Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOTTY => Error::NotSupported {
                what: "making dumb buffers",
                owner: "this graphics driver",
                native: errno.raw_os_error(),
            },
            Errno::ACCESS | Errno::PERM => Error::Native {
                call: "ioctl(DRM_IOCTL_MODE_CREATE_DUMB)",
                native: errno.raw_os_error(),
                hint: "dumb buffers are made on cards (/dev/dri/card*), not on render nodes",
            },
            errno => Error::native("ioctl(DRM_IOCTL_MODE_CREATE_DUMB)", errno.raw_os_error()),
        })?;
        let exported = drm::export(card, handle).map_err(|errno| match errno {
            Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOTTY => Error::NotSupported {
                what: "exporting dumb buffers (PRIME)",
                owner: "this graphics driver",
                native: errno.raw_os_error(),
            },
            errno => source::shortage("ioctl(DRM_IOCTL_PRIME_HANDLE_TO_FD)", errno)
                .unwrap_or(Error::native("ioctl(DRM_IOCTL_PRIME_HANDLE_TO_FD)", errno.raw_os_error())),
        });
        // The buffer stays as long as the dma-buf; the handle is needed no more, and would stay as long as the card is open.
        let closed = drm::close(card, handle);
        let buffer = DmaBuf::made(exported?)?;
        closed.map_err(|errno| Error::native("ioctl(DRM_IOCTL_GEM_CLOSE)", errno.raw_os_error()))?;
        if given < size as u64 || buffer.size() < size as u64 {
            return Err(Error::Untrusted {
                why: "the graphics driver made a smaller buffer than it was asked for",
            });
        }
        Ok(buffer)
    }
}
