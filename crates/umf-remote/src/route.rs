//! [`RemoteHandle`]: a handle, and how its producer is reached from other machines.

use core::fmt;
use core::str::FromStr;

use umf_ipc::{HANDLE_SIZE, Handle};

/// The name of a block as plain bytes, for processes on this and on other machines: a [`Handle`],
/// and the *route* to the producer's server.
///
/// As bytes it is the 256 bytes of the handle and up to 512 of the route, little-endian; as text
/// ([`fmt::Display`], [`FromStr`]) `umfr1.` and URL-safe base64. The checksum (CRC-32) detects
/// accidents, not forgery.
///
/// | bytes after the handle | content |
/// |---|---|
/// | 4 | `UMFN` |
/// | 2 | version, 1 |
/// | 2 | bytes of the route, these included |
/// | 16 | the server's random number |
/// | 4 | libfabric's format of the address |
/// | 1 and as many | the provider of libfabric |
/// | 2 and as many | the address, as `fi_getname(3)` returns it |
/// | 4 | CRC-32 of handle and route before it |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteHandle {
    handle: Handle,
    route: Route,
}

/// How a producer's server is reached.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    pub server: [u8; 16],
    pub format: u32,
    pub provider: String,
    pub name: Vec<u8>,
}

/// Why bytes or a text are no remote handle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The handle in it is none.
    #[error(transparent)]
    Handle(#[from] umf_ipc::DecodeError),
    /// The bytes are a handle without a route.
    #[error(
        "the handle has no route to other machines: let the producer serve, and send its remote_handle()"
    )]
    NoRoute,
    /// The route is damaged, or of another version.
    #[error("not the route of a remote handle: {0}; send the bytes of the handle unchanged")]
    Damaged(&'static str),
}

const MAGIC: [u8; 4] = *b"UMFN";
const VERSION: u16 = 1;
/// The longest provider and address.
const MAX_PROVIDER: usize = 64;
pub(crate) const MAX_NAME: usize = 256;
const PREFIX: &str = "umfr1.";

impl RemoteHandle {
    /// The most bytes of a remote handle.
    pub const MAX_SIZE: usize = HANDLE_SIZE + 512;

    pub(crate) const fn new(handle: Handle, route: Route) -> Self {
        Self { handle, route }
    }

    /// Returns the handle, for processes of the producer's machine.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the provider of libfabric that reaches the producer.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.route.provider
    }

    /// Returns the address of the producer's server.
    #[must_use]
    pub fn address(&self) -> String {
        self.route.address()
    }

    pub(crate) const fn route(&self) -> &Route {
        &self.route
    }

    /// Returns the bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Route { server, format, provider, name } = &self.route;
        let size = 4 + 2 + 2 + 16 + 4 + 1 + provider.len() + 2 + name.len() + 4;
        let mut bytes = Vec::with_capacity(HANDLE_SIZE + size);
        bytes.extend(self.handle.as_bytes());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((size as u16).to_le_bytes());
        bytes.extend(server);
        bytes.extend(format.to_le_bytes());
        bytes.push(provider.len() as u8);
        bytes.extend(provider.as_bytes());
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(name);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Decodes a remote handle. Does not panic for any bytes.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RouteError> {
        let Some((handle, route)) = bytes.split_at_checked(HANDLE_SIZE) else {
            return Err(umf_ipc::DecodeError::Length { length: bytes.len() }.into());
        };
        let handle = Handle::from_bytes(handle)?;
        if route.is_empty() {
            return Err(RouteError::NoRoute);
        }
        let mut rest = route;
        if take(&mut rest)? != MAGIC {
            return Err(RouteError::Damaged("it does not begin with \"UMFN\""));
        }
        if u16::from_le_bytes(take(&mut rest)?) != VERSION {
            return Err(RouteError::Damaged("another version; let both processes use the same release"));
        }
        if usize::from(u16::from_le_bytes(take(&mut rest)?)) != route.len() {
            return Err(RouteError::Damaged("another length than it says"));
        }
        let server = take(&mut rest)?;
        let format = u32::from_le_bytes(take(&mut rest)?);
        let [length] = take(&mut rest)?;
        let provider = take_slice(&mut rest, usize::from(length), MAX_PROVIDER)?;
        let provider = str::from_utf8(provider).ok().filter(|text| text.bytes().all(|byte| byte > b' '));
        let provider = provider.ok_or(RouteError::Damaged("the provider is no name"))?.to_owned();
        let length = u16::from_le_bytes(take(&mut rest)?);
        let name = take_slice(&mut rest, usize::from(length), MAX_NAME)?.to_vec();
        let checksum = u32::from_le_bytes(take(&mut rest)?);
        if !rest.is_empty() || name.is_empty() || provider.is_empty() {
            return Err(RouteError::Damaged("a field has a length that no umf writes"));
        }
        if crc32fast::hash(&bytes[..bytes.len() - 4]) != checksum {
            return Err(RouteError::Damaged("its checksum is wrong"));
        }
        Ok(Self { handle, route: Route { server, format, provider, name } })
    }
}

/// Takes as many bytes as the result has.
fn take<const COUNT: usize>(rest: &mut &[u8]) -> Result<[u8; COUNT], RouteError> {
    let (taken, after) = rest.split_first_chunk().ok_or(RouteError::Damaged("it is cut"))?;
    *rest = after;
    Ok(*taken)
}

fn take_slice<'b>(rest: &mut &'b [u8], length: usize, max: usize) -> Result<&'b [u8], RouteError> {
    if length > max {
        return Err(RouteError::Damaged("a field is too long"));
    }
    let (taken, after) = rest.split_at_checked(length).ok_or(RouteError::Damaged("it is cut"))?;
    *rest = after;
    Ok(taken)
}

impl Route {
    /// Returns whether the route can be encoded.
    pub(crate) fn is_encodable(&self) -> bool {
        (1..=MAX_PROVIDER).contains(&self.provider.len()) && (1..=MAX_NAME).contains(&self.name.len())
    }

    /// Returns the address as text: host and port, or the bytes.
    pub(crate) fn address(&self) -> String {
        match crate::fabric::socket_address(self.format, &self.name) {
            Some(address) => format!("{address} ({})", self.provider),
            None => match str::from_utf8(&self.name) {
                Ok(text) => format!("{} ({})", text.trim_end_matches('\0'), self.provider),
                Err(_) => format!("{} ({})", data_encoding::HEXLOWER.encode(&self.name), self.provider),
            },
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address())
    }
}

impl fmt::Display for RemoteHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        data_encoding::BASE64URL_NOPAD.encode_display(&self.to_bytes()).fmt(f)
    }
}

impl FromStr for RemoteHandle {
    type Err = RouteError;

    fn from_str(text: &str) -> Result<Self, RouteError> {
        let encoded = text.trim().strip_prefix(PREFIX);
        let encoded = encoded.ok_or(RouteError::Damaged("the text does not begin with \"umfr1.\""))?;
        if encoded.len() > Self::MAX_SIZE * 2 {
            return Err(RouteError::Damaged("the text is too long"));
        }
        let bytes = data_encoding::BASE64URL_NOPAD.decode(encoded.as_bytes());
        Self::from_bytes(&bytes.map_err(|_| RouteError::Damaged("the text is no URL-safe base64"))?)
    }
}
