//! TLS without verification: the kubelet asks a pod by its address and trusts what it says of itself as it trusts HTTP.

use std::sync::{Arc, LazyLock};

use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, ServerName, UnixTime},
    },
};

/// Connects to whoever answers. `None` when the settings cannot be used, which a test excludes.
pub(super) static CONNECTOR: LazyLock<Option<TlsConnector>> = LazyLock::new(|| {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Anybody(Arc::clone(&provider)));
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    let config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    Some(TlsConnector::from(Arc::new(config)))
});

/// Takes every certificate.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    /// No signature is looked at, so what the library cannot verify and Go's client takes can be offered too: a server with a key of
    /// such a curve has nothing else.
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.0.signature_verification_algorithms.supported_schemes();
        schemes.push(SignatureScheme::ECDSA_NISTP521_SHA512);
        schemes
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::{LazyConfigAcceptor, rustls::server::Acceptor};

    use super::*;

    /// What Go's client offers to a server with a key of the curve P-521.
    #[tokio::test]
    async fn a_server_with_a_key_of_any_curve_can_answer() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let asks = tokio::spawn(CONNECTOR.as_ref().unwrap().connect(name, ours));
        let hello = LazyConfigAcceptor::new(Acceptor::default(), theirs).await.unwrap();
        let offered = hello.client_hello().signature_schemes().to_vec();
        for scheme in [
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::ECDSA_NISTP521_SHA512,
            SignatureScheme::ED25519,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PKCS1_SHA256,
        ] {
            assert!(offered.contains(&scheme), "{scheme:?} is not in {offered:?}");
        }
        drop(hello);
        drop(asks.await);
    }
}
