//! What certificates in PEM form say.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str,
};

use berth_core::cluster::certificate::{ServerNames, Subject, Validity};
use jiff::Timestamp;
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use x509_cert::{
    Certificate,
    attr::AttributeTypeAndValue,
    der::{Decode as _, asn1::ObjectIdentifier},
    ext::pkix::{SubjectAltName, name::GeneralName},
};

/// `CN` of a name.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
/// `O` of a name.
const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");

/// A certificate, as far as anything is decided by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) validity: Validity,
    pub(super) subject: Subject,
}

/// What the first certificate of a text says: of a chain, that is the one whom it is for.
pub(super) fn told(pem: &str) -> Option<Told> {
    of_der(&CertificateDer::from_pem_slice(pem.as_bytes()).ok()?)
}

/// How long the first certificate of a text holds.
pub(in crate::cluster) fn validity(pem: &str) -> Option<Validity> {
    told(pem).map(|told| told.validity)
}

/// How long each certificate of a text holds; nothing where there is none, or one that is not understood.
pub(super) fn chain(pem: &str) -> Option<Vec<Validity>> {
    let all = CertificateDer::pem_slice_iter(pem.as_bytes()).map(|der| Some(of_der(&der.ok()?)?.validity));
    all.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())
}

pub(super) fn of_der(der: &[u8]) -> Option<Told> {
    let certificate = Certificate::from_der(der).ok()?.tbs_certificate;
    let time = |time: x509_cert::time::Time| {
        let seconds = i64::try_from(time.to_unix_duration().as_secs()).ok();
        // The last day of the year 9999, which stands for no end, is later than any `Timestamp` (RFC 5280, 4.1.2.5).
        seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or(Timestamp::MAX)
    };
    let validity = Validity {
        not_before: time(certificate.validity.not_before),
        not_after: time(certificate.validity.not_after),
    };
    let attributes = || certificate.subject.0.iter().flat_map(|part| part.0.iter());
    let of = |kind| attributes().filter(move |one| one.oid == kind).filter_map(text);
    let subject = Subject {
        common_name: of(COMMON_NAME).next().unwrap_or_default(),
        organizations: of(ORGANIZATION).collect(),
        names: names(certificate.get::<SubjectAltName>().ok().flatten().map(|(_, names)| names)),
    };
    Some(Told { validity, subject })
}

fn text(attribute: &AttributeTypeAndValue) -> Option<String> {
    str::from_utf8(attribute.value.value()).ok().map(str::to_owned)
}

fn names(alternative: Option<SubjectAltName>) -> ServerNames {
    let (mut dns, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for name in alternative.into_iter().flat_map(|names| names.0) {
        match name {
            GeneralName::DnsName(name) => drop(dns.insert(name.to_string())),
            GeneralName::IpAddress(bytes) => ips.extend(ip(bytes.as_bytes())),
            _ => {}
        }
    }
    ServerNames { dns, ips }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = |bytes: [u8; 4]| IpAddr::V4(Ipv4Addr::from(bytes));
    let v6 = |bytes: [u8; 16]| IpAddr::V6(Ipv6Addr::from(bytes));
    bytes.try_into().map(v4).or_else(|_longer| bytes.try_into().map(v6)).ok()
}

/// A chain and its key, as a server or client presents them.
///
/// # Errors
/// One of them is none, or they do not belong together. The parser's words are not told: they quote lines, which may be the key's.
pub(in crate::cluster) fn certified(chain: &str, key: &str) -> Result<CertifiedKey, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let chain = chain.map_err(|_quoting| "its certificates are not in PEM form".to_owned())?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
    let key = key.map_err(|_quoting| "its key is not in PEM form".to_owned())?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| error.to_string())
}

/// Blocks of a kind: a file may hold both certificates and key.
pub(super) fn only(pem: &str, kind: &str) -> String {
    let mut kept = String::new();
    let mut is_in = false;
    for line in pem.lines() {
        if line.starts_with("-----BEGIN ") {
            is_in = line.trim_end().ends_with(&format!("{kind}-----"));
        }
        if is_in {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn made(names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "system:node:a");
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn a_certificate_tells_whom_it_is_for() {
        let (certificate, key) = made(&["a", "a.example", "10.0.0.1", "fd00::1"]);
        for pem in [format!("{certificate}{key}"), format!("{key}{certificate}")] {
            let told = told(&pem).unwrap();
            assert_eq!(told.subject.common_name, "system:node:a");
            assert_eq!(told.subject.organizations, BTreeSet::from(["system:nodes".to_owned()]));
            let dns: Vec<_> = told.subject.names.dns.iter().map(String::as_str).collect();
            let ips: Vec<_> = told.subject.names.ips.iter().map(ToString::to_string).collect();
            assert_eq!(
                (dns, ips),
                (vec!["a", "a.example"], vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()])
            );
            assert!(told.validity.not_before < told.validity.not_after);
            assert_eq!((only(&pem, "CERTIFICATE"), only(&pem, "KEY")), (lf(&certificate), lf(&key)));
        }
        for broken in ["", "x", "-----BEGIN CERTIFICATE-----", &certificate[..certificate.len() / 2]] {
            assert_eq!(told(broken), None, "{broken}");
        }
    }

    fn lf(text: &str) -> String {
        text.replace('\r', "")
    }

    #[test]
    fn a_key_is_taken_with_its_own_certificate_alone() {
        let ((certificate, key), (other, _)) = (made(&["a"]), made(&["a"]));
        certified(&certificate, &key).unwrap();
        for (chain, key) in [(&other, &key), (&certificate, &other), (&key, &key)] {
            certified(chain, key).unwrap_err();
        }
    }

    /// A key that somebody has put on one line is in the words of the parser.
    #[test]
    fn what_is_told_of_a_broken_key_has_nothing_of_it() {
        let (certificate, key) = made(&["a"]);
        let on_one_line = key.replace(['\r', '\n'], "");
        let body: String = key.lines().filter(|line| !line.starts_with('-')).collect();
        for (chain, key) in [(&certificate, &on_one_line), (&on_one_line, &key)] {
            let told = certified(chain, key).unwrap_err();
            assert!(!told.contains(&body[..8]) && !told.contains("77"), "{told}");
        }
    }

    #[test]
    fn a_certificate_without_an_end_holds() {
        for (year, is_last) in [(2999, false), (9999, true)] {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 12, 31);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
            let validity = told(&certificate).unwrap().validity;
            assert_eq!(validity.not_after == Timestamp::MAX, is_last, "{year}");
            assert!(!validity.has_ended(Timestamp::now()), "{year}");
        }
    }
}
