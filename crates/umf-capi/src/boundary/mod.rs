//! The boundary between C and Rust: result codes, pointers that C gave, and calls that neither unwind nor lose their error.
//!
//! # What C promises
//! Everything here rests on what UMF's headers ask of a caller: a pointer is NULL or points to what its type says for the time
//! of the call; a handle is NULL or one that this library made and did not destroy (the latest that it did are known); a string ends with a NUL. The types
//! [`Out`], [`Text`], [`List`] and [`Handle`] are such pointers, and check what can be checked.

mod call;
mod code;
mod failure;
mod pointer;
mod tombstones;

pub(crate) use call::{call, call_with};
pub(crate) use code::*;
pub(crate) use failure::{Failure, Outcome};
pub(crate) use pointer::{Handle, List, Out, Taken, Text};
