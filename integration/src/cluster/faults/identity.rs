//! Certificates: the API server's own, to serve with, and the node's, to ask with.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::cluster::Cluster;
use crate::files;

/// What is needed for both sides.
pub(super) struct Identity {
    pub(super) serves: TlsAcceptor,
    pub(super) asks: TlsConnector,
    pub(super) server: SocketAddr,
    pub(super) server_name: ServerName<'static>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Identity").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Identity {
    pub(super) fn of(cluster: &Cluster, kubeconfig: &Path) -> Result<Self> {
        let provider = Arc::new(default_provider());
        let held = |name: &str| files::read(cluster.pki(name));
        let (chain, key) = pair(held("apiserver.crt")?.as_bytes(), held("apiserver.key")?.as_bytes())?;
        let mut serves = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        serves.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];

        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(cluster.ca())? {
            roots.add(certificate?)?;
        }
        let text = files::read(kubeconfig)?;
        let held = |field: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(field));
            let line = line.with_context(|| format!("no {field} in {}", kubeconfig.display()))?;
            Ok::<_, anyhow::Error>(STANDARD.decode(line.trim())?)
        };
        let (chain, key) = pair(&held("client-certificate-data:")?, &held("client-key-data:")?)?;
        let asks = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        let server = cluster.address();
        Ok(Self {
            serves: TlsAcceptor::from(Arc::new(serves)),
            asks: TlsConnector::from(Arc::new(asks)),
            server,
            server_name: ServerName::IpAddress(server.ip().into()),
        })
    }
}

fn pair(chain: &[u8], key: &[u8]) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>()?;
    Ok((chain, PrivateKeyDer::from_pem_slice(key)?))
}
