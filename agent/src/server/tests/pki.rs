//! Authorities, and what they sign.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, date_time_ymd,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An authority.
pub(in crate::server) struct Authority {
    pub(in crate::server) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
pub(in crate::server) struct Identity {
    pub(in crate::server) chain: Vec<CertificateDer<'static>>,
    pub(in crate::server) key: PrivateKeyDer<'static>,
}

/// What a certificate is to say.
pub(in crate::server) struct Wanted<'a> {
    pub(in crate::server) names: &'a [(DnType, &'a str)],
    pub(in crate::server) years: (i32, i32),
    pub(in crate::server) usages: &'a [ExtendedKeyUsagePurpose],
}

impl Authority {
    pub(in crate::server) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    pub(in crate::server) fn sign(&self, wanted: &Wanted<'_>) -> Identity {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        // They begin with a name of the library's.
        params.distinguished_name = DistinguishedName::new();
        for (kind, text) in wanted.names {
            params.distinguished_name.push(kind.clone(), *text);
        }
        params.not_before = date_time_ymd(wanted.years.0, 1, 1);
        params.not_after = date_time_ymd(wanted.years.1, 1, 1);
        params.extended_key_usages = wanted.usages.to_vec();
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        Identity {
            chain: vec![signed.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }

    /// A client of a name, as everybody has it.
    pub(in crate::server) fn client(&self, name: &str) -> Identity {
        let names = [(DnType::CommonName, name), (DnType::OrganizationName, "testers")];
        self.sign(&Wanted {
            names: &names,
            years: (2020, 2999),
            usages: &[ExtendedKeyUsagePurpose::ClientAuth],
        })
    }

    pub(in crate::server) fn server(&self) -> Identity {
        let names = [(DnType::CommonName, "server")];
        self.sign(&Wanted {
            names: &names,
            years: (2020, 2999),
            usages: &[ExtendedKeyUsagePurpose::ServerAuth],
        })
    }
}
