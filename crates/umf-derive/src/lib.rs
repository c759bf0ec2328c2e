//! The derive macro of [`Plain`](../umf_core/view/trait.Plain.html), for structs in shared memory
//! whose fields are plain.
//!
//! ```
//! use umf_derive::Plain;
//!
//! #[derive(Clone, Copy, Plain)]
//! #[plain(crate = umf_core)] // not needed where the crate `umf` is a dependency
//! #[repr(C)]
//! struct Sample {
//!     time: u64,
//!     values: [f32; 2],
//! }
//!
//! let mut memory = [[0_u64; 2]; 3];
//! // SAFETY: the array is borrowed mutably as long as the view is used.
//! let samples = unsafe { umf_core::View::<Sample>::new(memory.as_mut_ptr().cast(), 3) }?;
//! samples.set(1, Sample { time: 7, values: [0.5, 1.5] })?;
//! assert_eq!(samples.get(1).map(|sample| sample.values[1]), Some(1.5));
//! # Ok::<(), umf_core::Error>(())
//! ```
//!
//! # Errors
//! It is a compile-time error if some bytes are not a valid value of the struct, or if the struct
//! has padding, whose bytes would be uninitialised:
//!
//! ```compile_fail
//! # use umf_derive::Plain;
//! #[derive(Clone, Copy, Plain)]
//! #[plain(crate = umf_core)]
//! #[repr(C)]
//! struct Padded {
//!     small: u8, // 7 bytes of padding follow: add `padding: [u8; 7]`
//!     large: u64,
//! }
//! ```
//!
//! ```compile_fail
//! # use umf_derive::Plain;
//! #[derive(Clone, Copy, Plain)]
//! #[plain(crate = umf_core)]
//! #[repr(C)]
//! struct Flag {
//!     set: bool, // a byte of 2 is no bool: use u8
//! }
//! ```
//!
//! ```compile_fail
//! # use umf_derive::Plain;
//! #[derive(Clone, Copy, Plain)]
//! #[plain(crate = umf_core)]
//! struct WithoutLayout {
//!     number: u32, // without `repr(C)` the compiler may reorder fields
//! }
//! ```

use proc_macro::TokenStream;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{Data, DeriveInput, Error, Meta, Result, Token, parse_macro_input};

/// Implements `umf::Plain` for a struct with `#[repr(C)]` or `#[repr(transparent)]`.
///
/// # Errors
/// At compile time: types other than structs, generic structs, structs of another layout, fields
/// that are not plain, padding.
///
/// The implementation refers to the trait as `::umf::Plain`. In a crate without that dependency,
/// add `#[plain(crate = umf_core)]`.
#[proc_macro_derive(Plain, attributes(plain))]
pub fn derive_plain(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    plain(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn plain(input: &DeriveInput) -> Result<proc_macro2::TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(
            &input.ident,
            "cannot derive `Plain`: this is not a struct, and some bytes are not a valid value of an enum or a \
             union; use a struct with integer fields",
        ));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &input.generics,
            "cannot derive `Plain` for a generic struct: its padding depends on its parameters; make it a concrete \
             struct, or implement `Plain` for it by hand",
        ));
    }
    let mut has_layout = false;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        let words = attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)?;
        has_layout |=
            words.iter().any(|word| word.path().is_ident("C") || word.path().is_ident("transparent"));
    }
    if !has_layout {
        return Err(Error::new_spanned(
            &input.ident,
            "cannot derive `Plain`: all processes must agree on the layout; add `#[repr(C)]` or \
             `#[repr(transparent)]`",
        ));
    }
    let mut core = quote!(::umf);
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("plain")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error(
                    "unknown argument: use `crate = path`, the path of the crate `umf-core` or `umf`",
                ));
            }
            let path: syn::Path = meta.value()?.parse()?;
            core = quote!(#path);
            Ok(())
        })?;
    }
    let name = &input.ident;
    let types: Vec<_> = data.fields.iter().map(|field| &field.ty).collect();
    let message = format!(
        "cannot derive `Plain` for `{name}`: it has padding; add fields for it, such as `padding: [u8; 4]`"
    );
    Ok(quote! {
        // SAFETY: the layout is that of C, each field is plain, and the assertion below excludes
        // padding.
        unsafe impl #core::Plain for #name
        where
            #(#types: #core::Plain,)*
        {
        }
        const _: () = {
            let fields = 0 #(+ ::core::mem::size_of::<#types>())*;
            assert!(::core::mem::size_of::<#name>() == fields, #message);
        };
    })
}

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
