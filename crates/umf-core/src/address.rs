//! [`Address`]: an address that cannot be dereferenced by accident.

use core::fmt;

/// The address space that an [`Address`] belongs to.
///
/// Space 0 is the address space of this process: host memory, and device memory with unified
/// addressing, where no device address equals a host address. A provider of a device with separate
/// addressing uses another space, so that its addresses are never mistaken for those of the
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressSpace(u8);

impl AddressSpace {
    /// The address space of this process.
    pub const PROCESS: Self = Self(0);
    /// The number of spaces, from 0 to 127.
    pub const COUNT: usize = 128;

    /// Returns the space with this number, or `None` if it is 128 or more.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < Self::COUNT { Some(Self(number)) } else { None }
    }

    /// Returns the number of this space.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// A byte address that can be computed with, compared and looked up, but not dereferenced.
///
/// Pools and the tracker use this type: device memory must not be accessed by the CPU, and pools
/// never access the memory of their blocks. [`Address::as_ptr`] is the only conversion to a
/// pointer. Only memory that its provider declares host-accessible may be dereferenced.
///
/// The lower 57 bits are the offset in the space (the user half of five-level paging), the upper 7
/// the [`AddressSpace`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Address(u64);

impl Address {
    /// Bits of an address inside its space.
    pub const BITS: u32 = 57;
    const MASK: u64 = (1 << Self::BITS) - 1;

    /// Address `value` of this process, or `None` if it does not fit into 57 bits.
    #[must_use]
    pub const fn new(value: usize) -> Option<Self> {
        Self::in_space(AddressSpace::PROCESS, value as u64)
    }

    /// Address `value` of `space`, or `None` if it does not fit into 57 bits.
    #[must_use]
    pub const fn in_space(space: AddressSpace, value: u64) -> Option<Self> {
        if value <= Self::MASK { Some(Self(((space.0 as u64) << Self::BITS) | value)) } else { None }
    }

    /// Returns the address of a pointer of this process.
    ///
    /// User space has no pointers above 57 bits. Such a value is truncated to 57 bits, and is then
    /// no tracked address.
    #[must_use]
    pub fn from_ptr<T: ?Sized>(pointer: *const T) -> Self {
        Self(pointer.cast::<u8>().addr() as u64 & Self::MASK)
    }

    /// Returns the space that this address belongs to.
    #[must_use]
    pub const fn space(self) -> AddressSpace {
        AddressSpace((self.0 >> Self::BITS) as u8)
    }

    /// Returns the offset in its space: for [`AddressSpace::PROCESS`] the virtual address.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0 & Self::MASK
    }

    /// Returns space and value as one number, which page maps use as an index.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the address of which [`Address::to_bits`] returned `bits`.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the address as a pointer of this process, or `None` in another address space.
    ///
    /// Dereferencing it is sound only if the provider declares the memory host-accessible.
    #[must_use]
    pub fn as_ptr(self) -> Option<*mut u8> {
        if self.0 <= Self::MASK {
            usize::try_from(self.0).ok().map(core::ptr::with_exposed_provenance_mut)
        } else {
            None
        }
    }

    /// Returns `self + bytes`, or `None` past the end of the space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.value().checked_add(bytes) {
            Some(value) => Self::in_space(self.space(), value),
            None => None,
        }
    }

    /// Returns the bytes from `base` to `self`, or `None` if `self` lies below it or in another
    /// space.
    #[must_use]
    pub const fn offset_from(self, base: Self) -> Option<u64> {
        if self.space().0 == base.space().0 { self.0.checked_sub(base.0) } else { None }
    }

    /// Returns whether the address is a multiple of `alignment` (a power of two).
    #[must_use]
    pub const fn is_aligned_to(self, alignment: usize) -> bool {
        self.0 & (alignment as u64).wrapping_sub(1) & Self::MASK == 0
    }

    /// Returns the next multiple of `alignment` (a power of two), or `None` past the end of the
    /// space.
    #[must_use]
    pub const fn align_up(self, alignment: usize) -> Option<Self> {
        let mask = (alignment as u64).wrapping_sub(1);
        match self.value().checked_add(mask) {
            Some(value) => Self::in_space(self.space(), value & !mask),
            None => None,
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.space() == AddressSpace::PROCESS {
            write!(f, "{:#x}", self.value())
        } else {
            write!(f, "{}:{:#x}", self.space().0, self.value())
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_do_not_mix() {
        let ours = Address::new(0x1000).unwrap();
        let other = Address::in_space(AddressSpace::new(3).unwrap(), 0x1000).unwrap();
        assert_ne!(ours, other);
        assert_eq!(other.value(), 0x1000);
        assert_eq!(other.space().number(), 3);
        assert!(other.as_ptr().is_none());
        assert_eq!(other.offset_from(ours), None);
        assert_eq!(ours.checked_add(16).unwrap().offset_from(ours), Some(16));
    }

    #[test]
    fn limits_are_checked() {
        assert!(Address::new(1 << 57).is_none());
        assert!(AddressSpace::new(128).is_none());
        let last = Address::new((1 << 57) - 1).unwrap();
        assert!(last.checked_add(1).is_none());
        assert!(last.align_up(4096).is_none());
        assert_eq!(Address::new(4097).unwrap().align_up(4096), Address::new(8192));
        assert!(Address::new(8192).unwrap().is_aligned_to(4096));
        assert!(!Address::new(8200).unwrap().is_aligned_to(4096));
    }
}
