//! The ports of a request over WebSocket, and their channels.

/// Most ports of a request: each has two channels, whose numbers are bytes.
const PORTS_MAX: usize = 127;

/// The ports of a query, in its order. The port at place `n` has channel `2n` for data and `2n + 1` for what went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports(Vec<u16>);

/// Why a query names no ports. The answer has status 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortsError {
    /// It has no `port`.
    #[error("query parameter \"port\" is required")]
    Missing,
    /// A value is no number from 1 to 65535, nor several of them with commas between.
    #[error("query parameter \"port\": {0:?} is not a port")]
    NotAPort(String),
    /// More than there are channels for.
    #[error("query parameter \"port\": there are more than {PORTS_MAX}")]
    TooMany,
}

impl Ports {
    /// Reads the values of all parameters `port` of a query.
    ///
    /// # Errors
    /// When they are no ports, or too many.
    pub fn of_query<'q>(values: impl IntoIterator<Item = &'q str>) -> Result<Ports, PortsError> {
        let mut ports = Vec::new();
        for text in values.into_iter().flat_map(|value| value.split(',')) {
            if ports.len() >= PORTS_MAX {
                return Err(PortsError::TooMany);
            }
            ports.push(port(text).ok_or_else(|| PortsError::NotAPort(text.to_owned()))?);
        }
        if ports.is_empty() { Err(PortsError::Missing) } else { Ok(Ports(ports)) }
    }

    /// Each port, its channel for data and the one for what went wrong.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u8, u8)> + '_ {
        self.0.iter().zip((0..).step_by(2)).map(|(port, data)| (*port, data, data + 1))
    }

    /// Channels of the session.
    pub fn channels(&self) -> u8 {
        u8::try_from(self.0.len() * 2).unwrap_or(u8::MAX)
    }

    /// The data with which each of the two channels of a port begins.
    pub fn greeting(port: u16) -> [u8; 2] {
        port.to_le_bytes()
    }
}

/// A port, in decimal digits as Go reads them.
pub(super) fn port(text: &str) -> Option<u16> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_number && *port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_two_channels() {
        let ports = Ports::of_query(["80,443", "8080", "80"]).unwrap();
        let channels: Vec<_> = ports.iter().collect();
        assert_eq!(channels, [(80, 0, 1), (443, 2, 3), (8080, 4, 5), (80, 6, 7)]);
        assert_eq!(ports.channels(), 8);
        assert_eq!(Ports::greeting(8080), [0x90, 0x1f]);
        let most = vec!["1"; PORTS_MAX];
        assert_eq!(Ports::of_query(most).unwrap().channels(), 254);
    }

    #[test]
    fn queries_without_ports() {
        assert_eq!(Ports::of_query([]), Err(PortsError::Missing));
        for value in ["", "80,", "0", "65536", "http", "+1"] {
            assert!(matches!(Ports::of_query([value]), Err(PortsError::NotAPort(_))), "{value}");
        }
        assert_eq!(Ports::of_query(vec!["1"; PORTS_MAX + 1]), Err(PortsError::TooMany));
    }
}
