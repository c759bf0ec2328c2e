//! Parses short texts of users and other processes. Parsing never panics. A printed value parses to
//! the same value.

#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;

fn parse<T: FromStr + Display + Debug + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let printed = value.to_string();
        assert_eq!(printed.parse::<T>().ok(), Some(value), "{text:?} as {printed:?}");
    }
}

fuzz_target!(|text: &str| {
    parse::<umf_config::ByteSize>(text);
    parse::<umf_domain::ObjectId>(text);
    parse::<umf_ipc::Exchange>(text);
    parse::<umf_link::Engine>(text);
    // An empty list prints as a word that does not parse.
    if !text.parse::<umf_topology::IdList>().is_ok_and(|list| list.is_empty()) {
        parse::<umf_topology::IdList>(text);
    }
    parse::<umf_topology::SpaceName>(text);
    let _ = umf_link::LinkAddress::of_name(text);
});
