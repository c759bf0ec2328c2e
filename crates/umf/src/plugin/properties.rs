//! Properties.

use umf_core::{Error, Properties, Property, PropertyValue, Region, Result};

use super::provider::PluginProvider;

/// `UMF_MEMORY_PROPERTY_CONTEXT` and `UMF_MEMORY_PROPERTY_DEVICE`.
const CONTEXT: i32 = 21;
const DEVICE: i32 = 22;

impl Properties for PluginProvider {
    fn property(&self, region: &Region, property: Property) -> Result<PropertyValue> {
        self.regions.check(region)?;
        let handle = |property| {
            let value = self.instance.property(region.base(), property)?;
            let value = usize::try_from(value).map_err(|_| self.instance.nonsense("has no such property"))?;
            Ok(PropertyValue::Handle(value))
        };
        match property {
            Property::AllocationId => Ok(PropertyValue::Number(region.id().get())),
            Property::CacheLine => self.instance.cache_line_size().map(PropertyValue::Number),
            Property::Context => handle(CONTEXT),
            Property::Device => handle(DEVICE),
            _ => {
                let owner = self.instance.owner();
                Err(Error::NotSupported { what: "this property", owner, native: 0 })
            }
        }
    }
}
