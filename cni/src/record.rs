//! What is written down about an attachment, in the format of libcni's cache (`cniCacheV1`).
//!
//! The same format serves for the intent, written before ADD without a result, and for the cached result.

use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attachment::{Attachment, CniArgs, TraceContext};
use crate::capability::CapabilityArgs;
use crate::config::NetworkList;
use crate::name::{ContainerId, InterfaceName, NetworkName};

const KIND: &str = "cniCacheV1";

/// Which attachment: a container has one per network and interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The network.
    pub network: NetworkName,
    /// The container.
    pub container_id: ContainerId,
    /// Its interface.
    pub ifname: InterfaceName,
}

/// One attachment as it was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Which one.
    pub key: Key,
    /// The network namespace it was made in.
    pub netns: PathBuf,
    /// The network's configuration, as [`NetworkList::bytes`].
    pub config: Vec<u8>,
    /// The `CNI_ARGS` it was made with.
    pub args: CniArgs,
    /// The capability arguments it was made with.
    pub capability_args: CapabilityArgs,
    /// The result, once ADD has succeeded.
    pub result: Option<Map<String, Value>>,
}

/// Why a record cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not JSON of this form.
    #[error("it is not a record: {0}")]
    Malformed(String),
    /// Another kind of file, such as the bare result that old runtimes cached.
    #[error("it is of another kind: {0:?}")]
    OtherKind(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    #[serde(default)]
    kind: String,
    container_id: ContainerId,
    #[serde(default)]
    config: Option<String>,
    if_name: InterfaceName,
    network_name: NetworkName,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    netns: String,
    #[serde(default, skip_serializing_if = "CniArgs::is_empty")]
    cni_args: CniArgs,
    #[serde(default, skip_serializing_if = "CapabilityArgs::is_empty")]
    capability_args: CapabilityArgs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Map<String, Value>>,
}

impl Record {
    /// The intent to make an attachment.
    #[must_use]
    pub fn intent(list: &NetworkList, attachment: &Attachment) -> Self {
        Self {
            key: Key {
                network: list.name.clone(),
                container_id: attachment.container_id.clone(),
                ifname: attachment.ifname.clone(),
            },
            netns: attachment.netns.clone(),
            config: list.bytes().to_vec(),
            args: attachment.args.clone(),
            capability_args: attachment.capability_args.clone(),
            result: None,
        }
    }

    /// The attachment that the record is of, with the network namespace to use now.
    #[must_use]
    pub fn attachment(&self, netns: PathBuf) -> Attachment {
        Attachment {
            container_id: self.key.container_id.clone(),
            netns,
            ifname: self.key.ifname.clone(),
            args: self.args.clone(),
            capability_args: self.capability_args.clone(),
            trace: TraceContext::default(),
        }
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// Never for records made here; the JSON writer's type says it could.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        let wire = Wire {
            kind: KIND.to_owned(),
            container_id: self.key.container_id.clone(),
            config: Some(BASE64_STANDARD.encode(&self.config)),
            if_name: self.key.ifname.clone(),
            network_name: self.key.network.clone(),
            netns: self.netns.to_string_lossy().into_owned(),
            cni_args: self.args.clone(),
            capability_args: self.capability_args.clone(),
            result: self.result.clone(),
        };
        serde_json::to_vec(&wire).map_err(malformed)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It is not a record, or of another kind.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let value: Value = serde_json::from_slice(bytes).map_err(malformed)?;
        let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
        if kind != KIND {
            return Err(RecordError::OtherKind(kind.to_owned()));
        }
        let wire: Wire = serde_json::from_value(value).map_err(malformed)?;
        let config = BASE64_STANDARD.decode(wire.config.unwrap_or_default()).map_err(malformed)?;
        Ok(Self {
            key: Key { network: wire.network_name, container_id: wire.container_id, ifname: wire.if_name },
            netns: wire.netns.into(),
            config,
            args: wire.cni_args,
            capability_args: wire.capability_args,
            result: wire.result,
        })
    }
}

fn malformed(error: impl std::fmt::Display) -> RecordError {
    RecordError::Malformed(error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn record() -> Record {
        let list =
            NetworkList::parse(br#"{"name":"net","cniVersion":"1.0.0","plugins":[{"type":"a"}]}"#).unwrap();
        let attachment = Attachment {
            args: CniArgs::new([("K", "V")]).unwrap(),
            capability_args: CapabilityArgs::new().mac("m"),
            ..Attachment::new(ContainerId::new("id1").unwrap(), "/ns", InterfaceName::new("eth0").unwrap())
        };
        Record {
            result: json!({"cniVersion": "1.0.0"}).as_object().cloned(),
            ..Record::intent(&list, &attachment)
        }
    }

    #[test]
    fn the_format_is_libcnis() {
        let record = record();
        let written: Value = serde_json::from_slice(&record.encode().unwrap()).unwrap();
        assert_eq!(
            written,
            json!({
                "kind": "cniCacheV1",
                "containerId": "id1",
                "config": "eyJuYW1lIjoibmV0IiwiY25pVmVyc2lvbiI6IjEuMC4wIiwicGx1Z2lucyI6W3sidHlwZSI6ImEifV19",
                "ifName": "eth0",
                "networkName": "net",
                "netns": "/ns",
                "cniArgs": [["K", "V"]],
                "capabilityArgs": {"mac": "m"},
                "result": {"cniVersion": "1.0.0"},
            })
        );
        assert_eq!(Record::decode(&record.encode().unwrap()), Ok(record));
    }

    #[test]
    fn what_is_incomplete_or_foreign_is_refused() {
        for missing in ["containerId", "ifName", "networkName"] {
            let mut written: Value = serde_json::from_slice(&record().encode().unwrap()).unwrap();
            written.as_object_mut().unwrap().remove(missing);
            let error = Record::decode(written.to_string().as_bytes()).unwrap_err();
            assert!(error.to_string().contains(missing), "{error}");
            written[missing] = "".into();
            assert!(matches!(Record::decode(written.to_string().as_bytes()), Err(RecordError::Malformed(_))));
        }
        assert!(matches!(Record::decode(b"adfadsfasdfasfdsafaf"), Err(RecordError::Malformed(_))));
        assert_eq!(Record::decode(br#"{"cniVersion":"1.0.0"}"#), Err(RecordError::OtherKind(String::new())));
        assert_eq!(
            Record::decode(br#"{"kind":"cniCacheV2"}"#),
            Err(RecordError::OtherKind("cniCacheV2".into()))
        );
    }

    proptest! {
        #[test]
        fn decoding_never_panics(value in crate::testing::json()) {
            drop(Record::decode(value.to_string().as_bytes()));
            drop(Record::decode(json!({"kind": KIND, "config": value, "result": value}).to_string().as_bytes()));
        }
    }
}
