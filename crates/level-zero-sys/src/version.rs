//! Versions of the interface, of the loader and of extensions.

/// A version from its major and minor number.
#[must_use]
pub const fn make_version(major: u32, minor: u32) -> u32 {
    (major << 16) | (minor & 0xffff)
}

enums! {
    /// A version of the specification: major in the upper half, minor in the lower.
    ze_api_version_t {
        ZE_API_VERSION_1_0 = make_version(1, 0),
        ZE_API_VERSION_1_1 = make_version(1, 1),
        ZE_API_VERSION_1_2 = make_version(1, 2),
        ZE_API_VERSION_1_3 = make_version(1, 3),
        ZE_API_VERSION_1_4 = make_version(1, 4),
        ZE_API_VERSION_1_5 = make_version(1, 5),
        ZE_API_VERSION_1_6 = make_version(1, 6),
        ZE_API_VERSION_1_7 = make_version(1, 7),
        ZE_API_VERSION_1_8 = make_version(1, 8),
        ZE_API_VERSION_1_9 = make_version(1, 9),
        ZE_API_VERSION_1_10 = make_version(1, 10),
        ZE_API_VERSION_1_11 = make_version(1, 11),
        ZE_API_VERSION_1_12 = make_version(1, 12),
        ZE_API_VERSION_1_13 = make_version(1, 13),
        ZE_API_VERSION_1_14 = make_version(1, 14),
        ZE_API_VERSION_1_15 = make_version(1, 15),
        ZE_API_VERSION_1_16 = make_version(1, 16),
        ZE_API_VERSION_1_17 = make_version(1, 17),
        ZE_API_VERSION_CURRENT = make_version(1, 17),
    }
}
