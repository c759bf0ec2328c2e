//! From `umf_result_t` to [`Error`].

use umf_core::Error;

use super::ops::Code;
use super::text::lasting;

pub(super) const SUCCESS: Code = 0;
pub(super) const OUT_OF_HOST_MEMORY: Code = 1;
pub(super) const PROVIDER_SPECIFIC: Code = 2;
pub(super) const INVALID_ARGUMENT: Code = 3;
pub(super) const INVALID_ALIGNMENT: Code = 4;
pub(super) const NOT_SUPPORTED: Code = 5;
pub(super) const USER_SPECIFIC: Code = 6;
pub(super) const DEPENDENCY_UNAVAILABLE: Code = 7;
pub(super) const OUT_OF_RESOURCES: Code = 8;
pub(super) const INVALID_CTL_PATH: Code = 9;
pub(super) const UNKNOWN: Code = 0x7fff_fffe;

/// What a plugin was asked to do.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// The member of its table.
    pub(super) operation: &'static str,
    /// Bytes, where some were asked for.
    pub(super) size: usize,
    /// Alignment, where one was asked for.
    pub(super) align: usize,
}

impl Asked {
    pub(super) const fn to(operation: &'static str) -> Self {
        Self { operation, size: 0, align: 1 }
    }

    pub(super) const fn on(operation: &'static str, size: usize) -> Self {
        Self { operation, size, align: 1 }
    }
}

/// The error for a code that is not success; `last` is what `get_last_native_error` says, if it was asked.
pub(super) fn error(
    code: Code,
    asked: Asked,
    owner: &'static str,
    last: Option<(i32, &'static str)>,
) -> Error {
    let call = lasting(&format!("{} of {owner}", asked.operation), asked.operation);
    let (native, said) = last.unwrap_or((code, ""));
    let native_with = |hint| Error::Native { call, native, hint };
    match code {
        OUT_OF_HOST_MEMORY | OUT_OF_RESOURCES => Error::OutOfMemory { size: asked.size, owner, native: 0 },
        PROVIDER_SPECIFIC => native_with(if said.is_empty() {
            "the number is the plugin's own; it gives no text"
        } else {
            said
        }),
        INVALID_ARGUMENT => Error::InvalidArgument { what: call, why: "the plugin refuses the arguments" },
        INVALID_ALIGNMENT => Error::BadAlignment { align: asked.align },
        NOT_SUPPORTED => Error::NotSupported { what: asked.operation, owner, native: 0 },
        USER_SPECIFIC => native_with("UMF_RESULT_ERROR_USER_SPECIFIC: see the plugin's own messages"),
        DEPENDENCY_UNAVAILABLE => native_with(
            "UMF_RESULT_ERROR_DEPENDENCY_UNAVAILABLE: install the library or driver that the plugin needs",
        ),
        INVALID_CTL_PATH => native_with("UMF_RESULT_ERROR_INVALID_CTL_PATH"),
        UNKNOWN => native_with("UMF_RESULT_ERROR_UNKNOWN: see the plugin's own messages"),
        _ => native_with("a result that UMF does not define"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_its_error() {
        let asked = Asked { operation: "alloc", size: 4096, align: 64 };
        let of = |code| error(code, asked, "plugin test", None);
        assert!(matches!(of(OUT_OF_HOST_MEMORY), Error::OutOfMemory { size: 4096, .. }));
        assert!(matches!(of(OUT_OF_RESOURCES), Error::OutOfMemory { size: 4096, .. }));
        assert!(matches!(of(INVALID_ALIGNMENT), Error::BadAlignment { align: 64 }));
        assert!(matches!(of(NOT_SUPPORTED), Error::NotSupported { what: "alloc", .. }));
        assert!(matches!(of(INVALID_ARGUMENT), Error::InvalidArgument { what: "alloc of plugin test", .. }));
        assert!(matches!(of(4711), Error::Native { native: 4711, .. }));
        let native = error(PROVIDER_SPECIFIC, asked, "plugin test", Some((1001, "cannot map")));
        assert!(matches!(
            native,
            Error::Native { native: 1001, hint: "cannot map", call: "alloc of plugin test" }
        ));
    }
}
