//! TLS of the server. Sources: `InitializeTLS` of `cmd/kubelet/app/server.go`, `pkg/kubelet/certificate/kubelet.go`.
//!
//! A client certificate is asked for and taken as it is, as by Go with `RequestClientCert`: who shows one that does not hold hears 401, in
//! an answer that they can read, and not that a handshake has failed. That they have its key is proven here.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::{
        ClientHello, NoClientAuth, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};

use crate::config::{TlsSettings, TlsVersion};

/// HTTP/2, by its name in TLS.
pub(super) const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// What the server presents at the moment.
pub type Presenting = watch::Receiver<Option<Arc<CertifiedKey>>>;

/// The configuration of the server.
///
/// # Errors
/// The settings leave nothing to speak with.
pub(super) fn config(
    settings: &TlsSettings,
    presenting: Presenting,
    asks_for_certificates: bool,
) -> Result<ServerConfig, Error> {
    let provider = Arc::new(provider(settings));
    let versions: &[_] = match settings.least {
        TlsVersion::Tls12 => &[&TLS13, &TLS12],
        TlsVersion::Tls13 => &[&TLS13],
    };
    let verifier: Arc<dyn ClientCertVerifier> = if asks_for_certificates {
        Arc::new(WhoeverHasTheKey(Arc::clone(&provider)))
    } else {
        Arc::new(NoClientAuth)
    };
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions)?;
    let mut config =
        builder.with_client_cert_verifier(verifier).with_cert_resolver(Arc::new(OfTheMoment(presenting)));
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    Ok(config)
}

fn provider(settings: &TlsSettings) -> CryptoProvider {
    let mut provider = ring::default_provider();
    if let Some(chosen) = &settings.suites {
        provider.cipher_suites.retain(|suite| suite.tls13().is_some() || chosen.contains(&suite.suite()));
    }
    if let Some(chosen) = &settings.groups {
        provider.kx_groups.retain(|group| chosen.contains(&group.name()));
    }
    provider
}

/// Presents what there is when somebody comes: another certificate needs no restart.
#[derive(Debug)]
struct OfTheMoment(Presenting);

impl ResolvesServerCert for OfTheMoment {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().clone()
    }
}

/// Takes every certificate whose key the client has.
#[derive(Debug)]
struct WhoeverHasTheKey(Arc<CryptoProvider>);

impl ClientCertVerifier for WhoeverHasTheKey {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None: whoever has a certificate may show it.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
