//! The file of a model learned from a capture: JSON, versioned. docs/traffic.md describes it.

use netstage_core::traffic::application::{Application, ApplicationError, Learned};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Version of the format. Readers refuse any other.
pub const FORMAT: u32 = 1;

/// Larger files are not read.
pub const MOST_BYTES: u64 = 64 << 20;

/// A model file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Version of the format.
    pub format: u32,
    /// Name of the capture it was learned from.
    pub capture: String,
    /// What was read of it.
    pub read: Read,
    /// The model.
    pub model: Arc<Learned>,
    /// How well samples drawn from the model resemble the capture.
    pub fit: Vec<Fit>,
}

/// What was read of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// Packets in the capture.
    pub packets: u64,
    /// Packets the model was learned from.
    pub used: u64,
    /// Packets of other flows or protocols.
    pub other: u64,
    /// Packets that could not be read.
    pub broken: u64,
    /// Flows, or connections, the model was learned from.
    pub flows: u64,
    /// Messages that were cut down to what a model can carry, or filled up to it.
    pub clamped: u64,
    /// Whether everything said was kept, so that a replay is complete.
    pub complete: bool,
}

/// One quantity, in the capture and in a run drawn from the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// Of what: `request`, `response`, `think`, `server`, `up.size`, `up.gap`, …
    pub quantity: String,
    /// Unit of the means.
    pub unit: String,
    /// Samples in the capture.
    pub samples: u64,
    /// Mean in the capture.
    pub mean: f64,
    /// Mean of the run drawn from the model.
    pub mean_drawn: f64,
    /// Coefficient of variation in the capture.
    pub variation: f64,
    /// That of the run drawn from the model.
    pub variation_drawn: f64,
    /// Correlation of one sample with the next in the capture. What is drawn has none.
    pub autocorrelation: f64,
    /// Largest distance between the two distribution functions (Kolmogorov–Smirnov).
    pub distance: f64,
    /// Distance that two samples of one distribution exceed in one case of a hundred.
    pub distance_at_1_percent: f64,
}

/// Why a text is no model file.
#[derive(Debug)]
pub enum ModelError {
    /// It is not JSON of this shape.
    Malformed(serde_json::Error),
    /// It has another version.
    Version(u64),
    /// The model cannot run.
    Unsound(ApplicationError),
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::Malformed(error) => write!(f, "this is no model file: {error}"),
            ModelError::Version(version) => {
                write!(f, "this model file has format {version}; this program reads format {FORMAT}")
            }
            ModelError::Unsound(error) => write!(f, "this model cannot run: {error}"),
        }
    }
}

impl std::error::Error for ModelError {}

impl ModelFile {
    /// Reads and checks the text of a model file.
    pub fn from_json(text: &str) -> Result<ModelFile, ModelError> {
        #[derive(Deserialize)]
        struct Version {
            format: u64,
        }
        let Version { format } = serde_json::from_str(text).map_err(ModelError::Malformed)?;
        if format != u64::from(FORMAT) {
            return Err(ModelError::Version(format));
        }
        let file: ModelFile = serde_json::from_str(text).map_err(ModelError::Malformed)?;
        let model = Application::Learned { model: Arc::clone(&file.model), replay: false };
        model.check(file.model.carriage).map_err(ModelError::Unsound)?;
        Ok(file)
    }

    /// Its text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text") + "\n"
    }
}
