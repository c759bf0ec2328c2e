//! Inspection of running processes through their ledgers: `umf ps`, `umf top` and `umf why`; and
//! `umf gc`, which removes what killed processes left.

pub(crate) mod gc;
mod processes;
pub(crate) mod ps;
mod screen;
mod table;
pub(crate) mod top;
pub(crate) mod why;

pub(crate) use table::shortened;
