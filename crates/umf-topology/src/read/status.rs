//! What this process may use (`/proc/self/status`).

use super::Reader;
use crate::{IdList, Result};

/// What this process may use; `None` where the kernel does not say, which is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// Nodes whose memory it may have.
    pub(crate) nodes: Option<IdList>,
    /// Processors that it may run on.
    pub(crate) cpus: Option<IdList>,
}

impl Reader<'_> {
    pub(super) fn allowed(&self) -> Result<Allowed> {
        let path = "proc/self/status";
        let text = self.text_with(path, &["_allowed_list:"])?.unwrap_or_default();
        let list = |key: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            value.map(|value| self.parse(path, value, "a list of numbers such as 0-3,8")).transpose()
        };
        Ok(Allowed { nodes: list("Mems_allowed_list")?, cpus: list("Cpus_allowed_list")? })
    }
}
