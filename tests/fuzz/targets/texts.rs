//! Short texts that users and other processes write: parsing never panics, and what is printed is
//! parsed to the same.

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
    // (None at all is printed for people.)
    if !text.parse::<umf_topology::IdList>().is_ok_and(|list| list.is_empty()) {
        parse::<umf_topology::IdList>(text);
    }
    parse::<umf_topology::SpaceName>(text);
    let _ = umf_link::LinkAddress::of_name(text);
});
