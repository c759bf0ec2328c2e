//! [`CtlQuery`]: a query of the control tree and its result; and [`control`], the `ext_ctl` of this
//! library's tables.

use core::ffi::{CStr, c_char, c_void};
use std::ffi::CString;

use umf_provider_plugin::table::{Ctl, State};

use crate::boundary::{Code, Failure, INVALID_CTL_PATH, Outcome, SUCCESS, Text, call};

/// Splits the first node off a path.
pub(super) fn first(path: &str) -> (&str, &str) {
    path.split_once('.').unwrap_or((path, ""))
}

/// Wildcard node: stands for the next variable argument.
pub(super) const ANY: &str = "{}";

/// A provider or pool with a control tree.
pub(crate) trait CtlTree {
    /// Answers a query.
    ///
    /// # Errors
    /// The path does not exist, or does not support the query.
    fn answer(&self, _query: &CtlQuery<'_>) -> Outcome<()> {
        Err(no_such_path())
    }
}

/// Returns the object behind a state of this library.
pub(crate) fn object_of<'a, T>(state: State) -> Outcome<&'a T> {
    // SAFETY: C guarantees that it passes the state that `initialize` returned, which points to
    // such an object.
    unsafe { state.cast::<T>().as_ref() }.ok_or(Failure::argument("the state of a provider or pool is NULL"))
}

/// The `ext_ctl` function of a table.
pub(crate) extern "C" fn control<T: CtlTree>(
    state: State,
    source: i32,
    name: *const c_char,
    argument: *mut c_void,
    size: usize,
    query: i32,
    more: *mut c_void,
) -> Code {
    call("ext_ctl", || {
        let query = CtlQuery::new(source, name, argument, size, query, more)?;
        let path = query.take_path()?;
        object_of::<T>(state)?.answer(&query.below(&path))
    })
}

/// The kind of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CtlAccess {
    Read,
    Write,
    Run,
}

/// `CTL_QUERY_CONFIG_INPUT`: the argument is text of the configuration.
pub(super) const CONFIG_INPUT: i32 = 2;

/// A node whose children are numbered: a wildcard below it stands for a `size_t`, and any other
/// wildcard for a name.
const NUMBERED: &str = "buckets";

/// A query at a node of the tree.
#[derive(Clone, Copy)]
pub(crate) struct CtlQuery<'a> {
    source: i32,
    path: &'a str,
    argument: *mut c_void,
    size: usize,
    access: CtlAccess,
    more: *mut c_void,
}

/// The result of a query.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Size(usize),
    Int(i32),
    Text(&'a str),
}

pub(crate) const fn no_such_path() -> Failure {
    Failure::new(INVALID_CTL_PATH, "the control tree has no such path")
}

const fn wrong_access() -> Failure {
    Failure::argument("this node of the control tree is not for that: some are read, some set, some run")
}

impl<'a> CtlQuery<'a> {
    pub(crate) fn new(
        source: i32,
        path: *const c_char,
        argument: *mut c_void,
        size: usize,
        access: i32,
        more: *mut c_void,
    ) -> Outcome<Self> {
        let path = Text::from_ptr(path).get_str()?;
        let access = match access {
            0 => CtlAccess::Read,
            1 => CtlAccess::Write,
            2 => CtlAccess::Run,
            _ => return Err(Failure::argument("a query is one of read, write and run")),
        };
        Ok(Self { source, path, argument, size, access, more })
    }

    /// Creates a query that sets a value of the configuration.
    pub(super) fn configured(path: &'a str, value: &CStr) -> Self {
        let argument = value.as_ptr().cast_mut().cast();
        let size = value.to_bytes_with_nul().len();
        Self {
            source: CONFIG_INPUT,
            path,
            argument,
            size,
            access: CtlAccess::Write,
            more: core::ptr::null_mut(),
        }
    }

    pub(crate) const fn path(&self) -> &'a str {
        self.path
    }

    pub(crate) const fn access(&self) -> CtlAccess {
        self.access
    }

    pub(super) const fn source(&self) -> i32 {
        self.source
    }

    /// Returns the same query at a node below.
    pub(crate) fn below<'b>(&self, path: &'b str) -> CtlQuery<'b>
    where
        'a: 'b,
    {
        CtlQuery { path, ..*self }
    }

    /// Returns the path with each wildcard replaced by the next variable argument, which is taken.
    pub(super) fn take_path(&self) -> Outcome<String> {
        let mut path = String::with_capacity(self.path.len());
        let mut parent = "";
        for (place, node) in self.path.split('.').enumerate() {
            if place > 0 {
                path.push('.');
            }
            match node {
                ANY if self.more.is_null() => return Err(no_such_path()),
                ANY if parent == NUMBERED => path.push_str(&next_size(self.more).to_string()),
                ANY => path.push_str(Text::from_ptr(next_pointer(self.more).cast()).get_str()?),
                node => path.push_str(node),
            }
            parent = node;
        }
        Ok(path)
    }

    /// Returns the path with each wildcard replaced by a name, and takes no variable arguments.
    /// Returns `None` if a wildcard is not known to stand for a name.
    pub(super) fn peek_path(&self) -> Option<String> {
        extern "C" fn take(context: *mut c_void, copy: *mut c_void) {
            // SAFETY: the context of the call below, which is not used meanwhile.
            let (query, path) = unsafe { &mut *context.cast::<(CtlQuery<'_>, Option<String>)>() };
            *path = CtlQuery { more: copy, ..*query }.take_path().ok();
        }
        if !self.path.contains(ANY) {
            return Some(self.path.to_owned());
        }
        if self.more.is_null() {
            return None;
        }
        let mut context = (*self, None);
        // SAFETY: a `va_list` from C. The function is called once, before this returns.
        unsafe { umf_capi_with_copy(take, (&raw mut context).cast(), self.more) };
        context.1
    }

    /// Takes the next node as a pointer, which must be a wildcard. Returns the query below.
    pub(super) fn pointer(&self) -> Outcome<(*mut c_void, Self)> {
        match first(self.path) {
            (ANY, rest) if !self.more.is_null() => Ok((next_pointer(self.more), self.below(rest))),
            _ => Err(no_such_path()),
        }
    }

    /// Takes the next node as a name. Returns the query below.
    pub(super) fn name(&self) -> Outcome<(String, Self)> {
        match first(self.path) {
            (ANY, rest) if !self.more.is_null() => {
                let name = Text::from_ptr(next_pointer(self.more).cast()).get_str()?;
                Ok((name.to_owned(), self.below(rest)))
            }
            ("" | ANY, _) => Err(no_such_path()),
            (name, rest) => Ok((name.to_owned(), self.below(rest))),
        }
    }

    /// Takes the next node as an index, if it is one. Returns the query below.
    pub(crate) fn index(&self) -> Outcome<Option<(usize, Self)>> {
        match first(self.path) {
            (ANY, rest) if !self.more.is_null() => Ok(Some((next_size(self.more), self.below(rest)))),
            (ANY, _) => Err(no_such_path()),
            (node, rest) => Ok(node.parse().ok().map(|index| (index, self.below(rest)))),
        }
    }

    /// Returns whether this query runs the node.
    pub(crate) fn runs(&self) -> bool {
        self.access == CtlAccess::Run
    }

    pub(crate) fn run(&self, act: impl FnOnce()) -> Outcome<()> {
        if !self.runs() {
            return Err(wrong_access());
        }
        act();
        Ok(())
    }

    /// Answers a node that is read only.
    pub(crate) fn read_only(&self, value: Value<'_>) -> Outcome<()> {
        match self.access {
            CtlAccess::Read => self.give(value),
            _ => Err(wrong_access()),
        }
    }

    /// Writes the result to the caller's argument, if it is large enough.
    pub(crate) fn give(&self, value: Value<'_>) -> Outcome<()> {
        match value {
            Value::Size(value) => self.give_bytes(&value.to_ne_bytes()),
            Value::Int(value) => self.give_bytes(&value.to_ne_bytes()),
            Value::Text(text) => {
                let text = CString::new(text).map_err(|_| Failure::argument("a text has a NUL inside"))?;
                self.give_bytes(text.as_bytes_with_nul())
            }
        }
    }

    pub(super) fn give_bytes(&self, bytes: &[u8]) -> Outcome<()> {
        if self.argument.is_null() || self.size < bytes.len() {
            return Err(Failure::argument("the place for an answer is smaller than the answer"));
        }
        // SAFETY: C guarantees that the argument has as many bytes as its size.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.argument.cast(), bytes.len()) };
        Ok(())
    }

    /// Returns the bytes of the argument.
    pub(super) fn bytes(&self) -> Outcome<&'a [u8]> {
        if self.argument.is_null() || isize::try_from(self.size).is_err() {
            return Err(Failure::argument("setting takes an argument and its size"));
        }
        // SAFETY: C guarantees that the argument has as many bytes as its size.
        Ok(unsafe { core::slice::from_raw_parts(self.argument.cast::<u8>(), self.size) })
    }

    /// Returns the argument as text; `None` if it is NULL.
    pub(super) fn text(&self) -> Outcome<Option<&'a str>> {
        if self.argument.is_null() {
            return Ok(None);
        }
        Text::from_ptr(self.argument.cast_const().cast()).get_str().map(Some)
    }

    /// Returns the argument as text if the query comes from the configuration.
    pub(super) fn text_if_configured(&self) -> Outcome<Option<&'a str>> {
        if self.source == CONFIG_INPUT { self.text() } else { Ok(None) }
    }

    fn integer<const N: usize>(&self) -> Outcome<i128> {
        if self.source == CONFIG_INPUT {
            let text = self.text()?.unwrap_or_default();
            return parse(text).ok_or(Failure::argument("a number of the configuration is none"));
        }
        let bytes =
            self.bytes()?.get(..N).ok_or(Failure::argument("the argument is smaller than its type"))?;
        let mut whole = [0; 16];
        whole[..N].copy_from_slice(bytes);
        let is_negative = N == 4 && bytes[N - 1] & 0x80 != 0;
        Ok(if is_negative { i128::from_le_bytes(whole) - (1 << 32) } else { i128::from_le_bytes(whole) })
    }

    /// Returns the argument of a write as a `size_t`.
    pub(crate) fn new_size(&self) -> Outcome<usize> {
        usize::try_from(self.integer::<8>()?)
            .map_err(|_| Failure::argument("a size is negative or too large"))
    }

    /// Returns the argument of a write as an `int`.
    pub(crate) fn new_int(&self) -> Outcome<i32> {
        i32::try_from(self.integer::<4>()?).map_err(|_| Failure::argument("a number is too large for an int"))
    }

    /// Returns the argument of a write as a boolean: an integer of any size; or `y`, `n`, `1`, `0`
    /// in the configuration.
    pub(super) fn new_bool(&self) -> Outcome<bool> {
        if self.source == CONFIG_INPUT {
            return match self.text()?.unwrap_or_default().as_bytes().first() {
                Some(b'y' | b'Y' | b'1') => Ok(true),
                Some(b'n' | b'N' | b'0') => Ok(false),
                _ => Err(Failure::argument("a truth of the configuration is neither y nor n")),
            };
        }
        Ok(self.bytes()?.first().is_some_and(|&byte| byte != 0))
    }

    /// Reads or writes a `size_t`.
    pub(crate) fn access_size(&self, place: &mut usize) -> Outcome<()> {
        match self.access {
            CtlAccess::Read => self.give(Value::Size(*place)),
            CtlAccess::Write => {
                *place = self.new_size()?;
                Ok(())
            }
            CtlAccess::Run => Err(wrong_access()),
        }
    }

    /// Reads or writes a boolean, which is read as an `int`.
    pub(crate) fn access_bool(&self, place: &mut bool) -> Outcome<()> {
        match self.access {
            CtlAccess::Read => self.give(Value::Int(i32::from(*place))),
            CtlAccess::Write => {
                *place = self.new_bool()?;
                Ok(())
            }
            CtlAccess::Run => Err(wrong_access()),
        }
    }

    /// Forwards the query to a table's `ext_ctl`.
    pub(super) fn forward(&self, to: Ctl, state: State) -> Outcome<()> {
        let path = CString::new(self.path).map_err(|_| no_such_path())?;
        let query = match self.access {
            CtlAccess::Read => 0,
            CtlAccess::Write => 1,
            CtlAccess::Run => 2,
        };
        check(forward(to, state, self.source, &path, self.argument, self.size, query, self.more))
    }
}

/// Converts a result code.
fn check(code: Code) -> Outcome<()> {
    if code == SUCCESS { Ok(()) } else { Err(Failure::foreign(code)) }
}

/// Parses a number as `strtoull` with base 0 does.
fn parse(text: &str) -> Option<i128> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        // `from_str_radix` accepts a sign.
        Some(hex) if !hex.starts_with(['+', '-']) => i128::from_str_radix(hex, 16).ok()?,
        Some(_) => return None,
        None if digits.len() > 1 && digits.starts_with('0') => i128::from_str_radix(digits, 8).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { -value } else { value })
}

// The C side of variable arguments (`c/variadic.c`). Every 64-bit ABI of Linux passes a `va_list`
// as one pointer.

unsafe extern "C" {
    fn umf_capi_next_pointer(more: *mut c_void) -> *mut c_void;
    fn umf_capi_next_size(more: *mut c_void) -> usize;
    fn umf_capi_with_copy(
        body: extern "C" fn(context: *mut c_void, copy: *mut c_void),
        context: *mut c_void,
        more: *mut c_void,
    );
    fn umf_capi_forward(
        to: Ctl,
        state: State,
        source: i32,
        name: *const c_char,
        argument: *mut c_void,
        size: usize,
        query: i32,
        more: *mut c_void,
    ) -> Code;
    fn umf_capi_forward_none(
        to: Ctl,
        state: State,
        source: i32,
        name: *const c_char,
        argument: *mut c_void,
        size: usize,
        query: i32,
        ...
    ) -> Code;
}

/// Takes the next argument as a pointer. C guarantees that it exists if the path has a wildcard.
fn next_pointer(more: *mut c_void) -> *mut c_void {
    // SAFETY: a `va_list` from C, or started in `c/variadic.c`.
    unsafe { umf_capi_next_pointer(more) }
}

/// Takes the next argument as a `size_t`.
fn next_size(more: *mut c_void) -> usize {
    // SAFETY: a `va_list` from C, or started in `c/variadic.c`.
    unsafe { umf_capi_next_size(more) }
}

/// Calls a table's `ext_ctl` with a copy of the arguments.
#[expect(clippy::too_many_arguments, reason = "those of ext_ctl")]
fn forward(
    to: Ctl,
    state: State,
    source: i32,
    name: &CStr,
    argument: *mut c_void,
    size: usize,
    query: i32,
    more: *mut c_void,
) -> Code {
    let name = name.as_ptr();
    if more.is_null() {
        // SAFETY: a function of a table with its state; it gets an empty list.
        return unsafe { umf_capi_forward_none(to, state, source, name, argument, size, query) };
    }
    // SAFETY: a function of a table with its state, and a `va_list` from C.
    unsafe { umf_capi_forward(to, state, source, name, argument, size, query, more) }
}

/// As [`forward`], without variable arguments.
pub(crate) fn forward_none(
    to: Ctl,
    state: State,
    source: i32,
    name: &CStr,
    argument: *mut c_void,
    size: usize,
    query: i32,
) -> Code {
    forward(to, state, source, name, argument, size, query, core::ptr::null_mut())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_c() {
        for (text, value) in [("12", 12), ("0x1F", 31), ("010", 8), ("-3", -3), (" 7 ", 7), ("0", 0)] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for text in ["", "x", "12x", "0x", "--1", "-+1", "0x-1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn arguments_have_the_size_of_their_type() {
        let mut value = -5_i32;
        let place = (&raw mut value).cast();
        let query = CtlQuery {
            source: 1,
            path: "x",
            argument: place,
            size: 4,
            access: CtlAccess::Write,
            more: core::ptr::null_mut(),
        };
        assert_eq!(query.new_int().unwrap(), -5);
        assert!(query.new_size().is_err());
        assert!(query.give(Value::Size(1)).is_err());
        assert!(query.read_only(Value::Int(1)).is_err());
        let configured = CtlQuery::configured("x", c"0x10");
        assert_eq!(configured.new_size().unwrap(), 16);
        assert!(CtlQuery::configured("x", c"maybe").new_bool().is_err());
    }
}
