//! Words of the keys of memory of devices.

use crate::field::words;

words! {
    /// Which memory a device's provider allocates.
    DeviceMemory {
        /// The device's own, in the form that other processes open best.
        #[default]
        Auto = "auto",
        /// The device's own, which the CPU must not touch.
        Device = "device",
        /// The host's, which devices reach.
        Host = "host",
        /// Memory that moves to where it is used.
        Shared = "shared" | "managed",
        /// The device's own, mapped into a range of addresses that was reserved before (CUDA).
        Virtual = "virtual",
    }
}

words! {
    /// When a driver gives freed memory back.
    FreePolicy {
        /// As the driver's usual free does.
        #[default]
        Default = "default",
        /// Once the device has finished with it; freeing waits for that.
        Blocking = "blocking",
        /// Once the device has finished with it; freeing does not wait.
        Deferred = "deferred",
    }
}

words! {
    /// What travels to other processes in place of device memory.
    DeviceHandles {
        /// What the driver can do best.
        #[default]
        Auto = "auto",
        /// Descriptors, taken out of the driver's handles and put in by its functions for that.
        FdFunctions = "fd-functions",
        /// Descriptors, in the first bytes of the driver's handles.
        Fd = "fd",
        /// The driver's handles as they are.
        Opaque = "opaque",
    }
}
