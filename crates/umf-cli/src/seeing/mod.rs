//! Looking at running processes: `umf ps`, `umf top`, `umf why`, and `umf gc` for what killed ones
//! left.

pub(crate) mod gc;
mod processes;
pub(crate) mod ps;
pub(crate) mod top;
pub(crate) mod why;
