//! An address with its prefix length, as it stands in CNI JSON.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address and the length of its network prefix, such as `10.1.2.3/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    /// The address; its host bits are kept.
    pub address: IpAddr,
    /// The length of the prefix in bits.
    pub prefix: u8,
}

/// A text that is not `address/prefix`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address with a prefix length, such as 10.1.2.3/24")]
pub struct CidrError(String);

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let error = || CidrError(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(error)?;
        let address: IpAddr = address.parse().map_err(|_not_an_address| error())?;
        let prefix: u8 = prefix.parse().map_err(|_not_a_number| error())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits { Err(error()) } else { Ok(Self { address, prefix }) }
    }
}

impl TryFrom<String> for Cidr {
    type Error = CidrError;

    fn try_from(text: String) -> Result<Self, CidrError> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        for text in ["10.1.2.3/24", "0.0.0.0/0", "fd00::1/64", "::/0", "1.1.1.1/32"] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
        }
        for text in ["", "10.1.2.3", "10.1.2.3/33", "fd00::1/129", "10.1.2/24", "a/1", "1.1.1.1/-1", "/"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
