//! Addresses as Go reads them.

use std::net::IpAddr;

/// An address as Go has read it: leading zeros say nothing, and an IPv4 address within an IPv6 one is just that. Source:
/// `ParseIPSloppy` of `k8s.io/utils/net/parse.go`.
pub(crate) fn sloppy(text: &str) -> Option<IpAddr> {
    let plain: String = text.split_inclusive(['.', ':']).map(without_zeros).collect();
    plain.parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

/// A number without its leading zeros, and what comes after it.
fn without_zeros(part: &str) -> &str {
    let zeros = part.len() - part.trim_start_matches('0').len();
    let is_followed = part.as_bytes().get(zeros).is_some_and(u8::is_ascii_hexdigit);
    // The last one stays where it is the number.
    &part[if is_followed { zeros } else { zeros.saturating_sub(1) }..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kubelet_reads_them() {
        for (text, expected) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.00.01", Some("10.0.0.1")),
            ("00000010.0.0.1", Some("10.0.0.1")),
            ("0.0.0.0", Some("0.0.0.0")),
            ("255.255.255.0255", Some("255.255.255.255")),
            ("fd00::1", Some("fd00::1")),
            ("FD00:000a::00010", Some("fd00:a::10")),
            ("00fd00::", Some("fd00::")),
            ("::", Some("::")),
            ("::0", Some("::")),
            ("::ffff:010.0.0.1", Some("10.0.0.1")),
            ("::ffff:a00:1", Some("10.0.0.1")),
            ("64:ff9b::010.0.0.1", Some("64:ff9b::a00:1")),
            ("1:2:3:4:5:6:7:8", Some("1:2:3:4:5:6:7:8")),
            ("", None),
            ("0", None),
            ("10", None),
            ("10.0.0", None),
            ("10.0.0.256", None),
            ("10.0.0.1.", None),
            (".10.0.0.1", None),
            ("10.0.0.-1", None),
            ("0x0a.0.0.1", None),
            ("10.0.0.1/24", None),
            ("10.0.0.1:80", None),
            ("[fd00::1]", None),
            ("fd00::1%eth0", None),
            ("1:2:3:4:5:6:7:8::", None),
            ("fd00::1::2", None),
            ("00ü.0.0.1", None),
            ("eth0", None),
        ] {
            assert_eq!(sloppy(text).map(|ip| ip.to_string()).as_deref(), expected, "{text}");
        }
    }
}
