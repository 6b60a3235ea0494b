//! An API server that signs every certificate that it is asked for.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{Client, client::Body};
use rcgen::{
    CertificateParams, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
    date_time_ymd,
};
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
use x509_cert::{der::Decode as _, request::CertReq};

use crate::cluster::Clients;

/// Clones are the same server.
#[derive(Clone)]
pub(super) struct Signer {
    from: i32,
    until: i32,
    /// Whether what it issues is of another key than it was asked for.
    is_of_another_key: bool,
    /// Requests with what was issued for them.
    signed: Arc<Mutex<Vec<Value>>>,
}

impl Signer {
    /// What it signs holds from the first day of a year until the last day of another.
    pub(super) fn of(from: i32, until: i32) -> Self {
        Self { from, until, is_of_another_key: false, signed: Arc::default() }
    }

    /// What it signs is of another key than it was asked for.
    pub(super) fn of_another_key() -> Self {
        Self { is_of_another_key: true, ..Self::of(2020, 2999) }
    }

    /// Clients of it.
    pub(super) fn clients(&self) -> Clients {
        let signer = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let signer = signer.clone();
            async move {
                let (parts, body) = request.into_parts();
                let sent = body.collect().await.unwrap().to_bytes();
                let answer = if parts.method == Method::POST { signer.sign(&sent) } else { signer.list() };
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answer))))
            }
        });
        Clients::new(Client::new(service, "default"))
    }

    /// How many it was asked for.
    pub(super) fn asked(&self) -> usize {
        self.signed.lock().unwrap().len()
    }

    fn sign(&self, sent: &[u8]) -> String {
        let sent: CertificateSigningRequest = serde_json::from_slice(sent).unwrap();
        let der = CertificateSigningRequestDer::from_pem_slice(&sent.spec.request.0).unwrap();
        let key = CertReq::from_der(&der).unwrap().info.public_key.subject_public_key;
        let key = match self.is_of_another_key {
            true => KeyPair::generate().unwrap().der_bytes().to_vec(),
            false => key.raw_bytes().to_vec(),
        };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_before = date_time_ymd(self.from, 1, 1);
        params.not_after = date_time_ymd(self.until, 12, 31);
        let own = CertificateParams::new(Vec::new()).unwrap();
        let issuer = Issuer::new(own, KeyPair::generate().unwrap());
        let issued = params.signed_by(&Asked(key), &issuer).unwrap().pem();
        let mut signed = self.signed.lock().unwrap();
        let metadata = json!({ "name": format!("csr-{}", signed.len()), "resourceVersion": "7" });
        signed.push(object(&metadata, &issued));
        signed[signed.len() - 1].to_string()
    }

    /// All requests, as a stream.
    fn list(&self) -> String {
        let mark = json!({ "resourceVersion": "7", "annotations": { "k8s.io/initial-events-end": "true" } });
        let event = |kind: &str, object: &Value| format!("{}\n", json!({ "type": kind, "object": object }));
        let all: String = self.signed.lock().unwrap().iter().map(|one| event("ADDED", one)).collect();
        all + &event("BOOKMARK", &object(&mark, ""))
    }
}

fn object(metadata: &Value, issued: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": metadata,
        "spec": { "request": "", "signerName": "x" }, "status": { "certificate": STANDARD.encode(issued) },
    })
}

/// The key that a request has.
struct Asked(Vec<u8>);

impl PublicKeyData for Asked {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}
