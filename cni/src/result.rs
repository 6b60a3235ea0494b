//! The result of ADD: one model for every version, and its JSON in each of them.
//!
//! A result is hostile input: it is parsed into this model, checked, and written again for the next plugin and for the
//! cache. What an older version cannot say is lost on the way down, as in libcni's `pkg/types`: 0.3 and 0.4 have no MTU,
//! socket path or PCI id of an interface; 0.1 and 0.2 have one address per family and no interfaces.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::cidr::Cidr;
use crate::name::InterfaceName;
use crate::version::{SpecVersion, VersionError};

/// What an ADD made, in the model of 1.1.0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddResult {
    /// The interfaces made, on both sides.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// The addresses assigned.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpConfig>,
    /// The routes made.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// The DNS settings that the network offers.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
}

/// One interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Its MTU in bytes, 0 when not said. Since 1.1.0.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "is_zero")]
    pub mtu: i64,
    /// The network namespace it is in; empty on the host.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// The path of its socket. Since 1.1.0.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// The PCI address of its device. Since 1.1.0.
    #[serde(
        default,
        rename = "pciID",
        deserialize_with = "null_is_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub pci_id: String,
}

/// One address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// Index into [`AddResult::interfaces`]; absent means the container's only interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    /// The address.
    pub address: Cidr,
    /// Its default gateway.
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// One route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Its destination.
    pub dst: Cidr,
    /// Its next hop.
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Its MTU in bytes, 0 when not said.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "is_zero")]
    pub mtu: i64,
    /// The MSS to advertise, 0 when not said.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "is_zero")]
    pub advmss: i64,
    /// Its priority, 0 when not said.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "is_zero")]
    pub priority: i64,
    /// Its table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<i64>,
    /// Its scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<i64>,
}

/// DNS settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Name servers, in order.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search domains, in order.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Resolver options.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// Why a result was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// Not JSON, or not a JSON object.
    #[error("the result is not a JSON object: {0}")]
    NotAnObject(String),
    /// Its version is not one this runtime speaks.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// It does not have the form of its version.
    #[error("the result is not one of CNI {version}: {reason}")]
    Shape {
        /// The version it claims, or else the configuration's.
        version: SpecVersion,
        /// What is wrong.
        reason: String,
    },
    /// An address names an interface that is not in the result.
    #[error("the result puts {address} on interface {index}, but has {interfaces} interfaces")]
    NoSuchInterface {
        /// The address.
        address: Cidr,
        /// The index.
        index: usize,
        /// How many interfaces there are.
        interfaces: usize,
    },
    /// An older version needs an address, and there is none.
    #[error("a result without an address cannot be written as CNI {0}")]
    NoAddress(SpecVersion),
}

impl AddResult {
    /// Parses what a plugin printed. A result without a version has that of the configuration; `null` is an empty one.
    ///
    /// # Errors
    /// The bytes are not a result of a version this runtime speaks.
    pub fn parse(bytes: &[u8], configured: SpecVersion) -> Result<Self, ResultError> {
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(object)) => Self::from_object(object, configured),
            Ok(Value::Null) => Ok(Self::default()),
            Ok(_) => Err(ResultError::NotAnObject("it is another kind of JSON value".into())),
            Err(error) => Err(ResultError::NotAnObject(error.to_string())),
        }
    }

    /// Parses a result that is already JSON.
    ///
    /// # Errors
    /// As [`AddResult::parse`].
    pub fn from_object(object: Map<String, Value>, configured: SpecVersion) -> Result<Self, ResultError> {
        let version = match object.get("cniVersion").and_then(Value::as_str) {
            Some(text) if !text.is_empty() => text.parse()?,
            _ => configured,
        };
        let shape = |error: serde_json::Error| ResultError::Shape { version, reason: error.to_string() };
        let result = if version <= SpecVersion::V0_2_0 {
            serde_json::from_value::<Legacy>(Value::Object(object)).map_err(shape)?.into_result()
        } else {
            serde_json::from_value(Value::Object(object)).map_err(shape)?
        };
        result.check_indices()?;
        Ok(result)
    }

    /// The result as JSON of a version.
    ///
    /// # Errors
    /// 0.1.0 and 0.2.0 need an address once something was made.
    pub fn to_value(&self, version: SpecVersion) -> Result<Value, ResultError> {
        let shape = |error: serde_json::Error| ResultError::Shape { version, reason: error.to_string() };
        let mut value = if version <= SpecVersion::V0_2_0 {
            serde_json::to_value(Legacy::from_result(self, version)?).map_err(shape)?
        } else if version < SpecVersion::V1_0_0 {
            self.to_0_4_value().map_err(shape)?
        } else {
            serde_json::to_value(self).map_err(shape)?
        };
        value["cniVersion"] = version.as_str().into();
        Ok(value)
    }

    /// The addresses of the container's interface `ifname`, IPv4 first, else in the order of the result.
    ///
    /// An address without an interface belongs to it. (go-cni `createResult`, containerd `selectPodIPs`.)
    #[must_use]
    pub fn pod_ips(&self, ifname: &InterfaceName) -> Vec<IpAddr> {
        let on_it = |ip: &&IpConfig| match ip.interface {
            None => true,
            Some(index) => self.interfaces.get(index).is_some_and(|found| found.name == ifname.as_str()),
        };
        let mut ips: Vec<_> = self.ips.iter().filter(on_it).map(|ip| ip.address.address).collect();
        ips.sort_by_key(IpAddr::is_ipv6);
        ips
    }

    fn check_indices(&self) -> Result<(), ResultError> {
        let interfaces = self.interfaces.len();
        let stray =
            self.ips.iter().find_map(|ip| Some((ip.address, ip.interface.filter(|i| *i >= interfaces)?)));
        match stray {
            Some((address, index)) => Err(ResultError::NoSuchInterface { address, index, interfaces }),
            None => Ok(()),
        }
    }

    fn to_0_4_value(&self) -> Result<Value, serde_json::Error> {
        let mut older = self.clone();
        for interface in &mut older.interfaces {
            interface.mtu = 0;
            interface.socket_path.clear();
            interface.pci_id.clear();
        }
        let mut value = serde_json::to_value(&older)?;
        if let Some(ips) = value.get_mut("ips").and_then(Value::as_array_mut) {
            for (ip, config) in ips.iter_mut().zip(&self.ips) {
                ip["version"] = if config.address.address.is_ipv4() { "4" } else { "6" }.into();
            }
        }
        Ok(value)
    }
}

impl Dns {
    /// Nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A result of 0.1.0 or 0.2.0.
#[derive(Serialize, Deserialize)]
struct Legacy {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ip4: Option<LegacyIp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ip6: Option<LegacyIp>,
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Dns::is_empty")]
    dns: Dns,
}

#[derive(Serialize, Deserialize)]
struct LegacyIp {
    ip: Cidr,
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

impl Legacy {
    fn into_result(self) -> AddResult {
        let mut result = AddResult { dns: self.dns, ..AddResult::default() };
        for family in [self.ip4, self.ip6].into_iter().flatten() {
            result.ips.push(IpConfig { interface: None, address: family.ip, gateway: family.gateway });
            result.routes.extend(family.routes);
        }
        result
    }

    fn from_result(result: &AddResult, version: SpecVersion) -> Result<Self, ResultError> {
        let family = |is_ipv4: bool| {
            let ip = result.ips.iter().find(|ip| ip.address.address.is_ipv4() == is_ipv4)?;
            let routes = result
                .routes
                .iter()
                .filter(|route| route.dst.address.is_ipv4() == is_ipv4)
                .map(|route| Route::plain(route.dst, route.gw))
                .collect();
            Some(LegacyIp { ip: ip.address, gateway: ip.gateway, routes })
        };
        let nothing_made = result.interfaces.is_empty() && result.routes.is_empty();
        match (family(true), family(false)) {
            (None, None) if !nothing_made => Err(ResultError::NoAddress(version)),
            (ip4, ip6) => Ok(Self { ip4, ip6, dns: result.dns.clone() }),
        }
    }
}

impl Route {
    /// A route with nothing but a destination and a next hop.
    #[must_use]
    pub fn plain(dst: Cidr, gw: Option<IpAddr>) -> Self {
        Self { dst, gw, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field by reference")]
fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// Go, in which plugins are written, takes null for any zero value.
fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Go prints an absent address as an empty string.
fn empty_is_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IpAddr>, D::Error> {
    match Option::<String>::deserialize(from)? {
        Some(text) if !text.is_empty() => text.parse().map(Some).map_err(serde::de::Error::custom),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
