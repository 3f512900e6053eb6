package lint

import "github.com/trtship/trtship/internal/triton/pbtxt"

// Decider says who decides what a rule says.
type Decider string

// The deciders. What the core decides is compared with a real server in tests;
// what a native backend decides is taken from its source; the rest is ours.
const (
	Core        Decider = "core"
	ONNXRuntime Decider = "onnxruntime backend"
	TensorRT    Decider = "tensorrt backend"
	PyTorch     Decider = "pytorch backend"
	Ours        Decider = "trtship"
)

// Rule is one thing that is looked at.
type Rule struct {
	ID       string
	Title    string // what is wrong, as a sentence
	Decider  Decider
	Severity Severity
	Source   string // where the decider says so
}

const (
	utils     = "core: src/model_config_utils.cc, "
	lifecycle = "core: src/model_lifecycle.cc, "
	manager   = "core: src/model_repository_manager.cc, "
	ortSource = "onnxruntime_backend: src/onnxruntime.cc, "
	trtSource = "tensorrt_backend: src/instance_state.cc, "
)

// Rules is the table of rules.
var Rules = []Rule{
	// The text.
	{"text/" + pbtxt.KindSyntax, "The text is not protobuf text.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindBOM, "The file starts with a byte-order mark.", Core, Error, "protobuf: Interpreting non ascii codepoint 239"},
	{"text/" + pbtxt.KindQuote, "A typographic quote stands for a straight one.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindUnquoted, "A string has no quotes.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindPlaceholder, "A template placeholder was never filled.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindPlaceholderText, "A string holds a template placeholder.", Ours, Warning, ""},
	{"text/" + pbtxt.KindJSON, "The file is JSON.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindField, "A field does not exist.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindEnum, "A value of an enumeration does not exist.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindType, "A value has the wrong type.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindTwice, "A field that may be given once is given twice.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindChoice, "Two members of one choice are given.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindRange, "A number does not fit its field.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindMapKey, "A map has one key twice.", Ours, Warning, "protobuf: the last entry wins"},
	{"text/" + pbtxt.KindColon, "A scalar has no colon before its value.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindEncoding, "The file is not UTF-8.", Core, Error, "protobuf: TextFormat::Parse"},
	{"text/" + pbtxt.KindNewer, "A field is newer than server 2.51.", Ours, Warning, "common: protobuf/model_config.proto"},

	// The layout.
	{"layout/empty", "There is no model.", Ours, Error, ""},
	{"layout/no-version", "No version folder is left for the version policy.", Core, Error, manager + "at least one version must be available"},
	{"layout/leading-zero", "A version folder starts with a zero and is ignored.", Core, Warning, lifecycle + "contains leading zeros"},
	{"layout/version-name", "A folder that holds a model is no number and is ignored.", Core, Warning, lifecycle + "fails to convert to integral number"},
	{"layout/version-suffix", "A folder starts with digits: it is read as that version, and another folder is looked for.", ONNXRuntime, Error, lifecycle + "std::stoll; the backend then finds no file"},
	{"layout/config-in-version", "config.pbtxt lies in a version folder, where it is not read.", Ours, Error, "core: config.pbtxt is read from the model's folder; without it the backend completes what it can and the file is silently ignored"},
	{"layout/no-config", "There is no config.pbtxt: everything is guessed from the model file.", Ours, Warning, utils + "AutoCompleteBackendFields"},
	{"layout/directory-name", "The folder has another name than the model.", Core, Error, manager + "directory name must equal model name"},
	{"layout/model-file", "The model file is missing.", ONNXRuntime, Error, ortSource + "LoadModel: unable to find"},
	{"layout/plan-file", "The plan is missing.", TensorRT, Error, "tensorrt_backend: src/model_state.cc: unable to find"},
	{"layout/backend-guess", "Neither platform nor backend is given: it is guessed from the file's name.", Ours, Warning, utils + "AutoCompleteBackendFields"},
	{"layout/labels-missing", "A label file is missing.", Core, Error, "core: src/label_provider.cc"},
	{"layout/labels-count", "A label file has not one line a class.", Ours, Warning, "core: src/label_provider.cc: missing labels are empty"},

	// What the core demands.
	{"config/backend", "No backend is given and none can be guessed.", Core, Error, utils + "AutoCompleteBackendFields, ValidateModelConfig"},
	{"config/platform", "The platform is not one that the server knows.", Core, Error, utils + "ValidateModelConfig: unexpected platform type"},
	{"config/platform-backend", "Platform and backend contradict each other.", Core, Error, utils + "ValidateModelConfig: unexpected 'platform' and 'backend' pair"},
	{"config/max-batch", "max_batch_size is negative.", Core, Error, utils + "ValidateModelConfig"},
	{"io/name", "An input or output has no name.", Core, Error, utils + "ValidateIOShape"},
	{"io/data-type", "An input or output has no data type.", Core, Error, utils + "ValidateIOShape"},
	{"io/dims", "Dimensions are missing, zero or negative.", Core, Error, utils + "ValidateIOShape"},
	{"io/reshape", "A reshape has another number of elements.", Core, Error, utils + "ValidateIOShape"},
	{"io/format", "An image format needs three dimensions.", Core, Error, utils + "ValidateModelInput"},
	{"io/shape-tensor", "Shape tensors exist for TensorRT only.", Core, Error, utils + "ValidateModelInput"},
	{"io/twice", "Two inputs or two outputs have one name.", Ours, Error, ""},
	{"batching/preferred", "A preferred batch size is not within max_batch_size.", Core, Error, utils + "ValidateModelConfig"},
	{"batching/priority", "Priority levels do not fit together.", Core, Error, utils + "ValidateModelConfig"},
	{"batching/order", "preserve_ordering excludes this.", Core, Error, utils + "ValidateModelConfig"},
	{"batching/off", "Dynamic batching of a model that takes no batches does nothing.", Ours, Warning, "core: src/dynamic_batch_scheduler.cc"},
	{"sequence/control", "A sequence control is not written rightly.", Core, Error, utils + "GetBooleanSequenceControlProperties"},
	{"sequence/cache", "The response cache does not go with this.", Core, Error, utils + "ValidateModelConfig"},
	{"instance/gpu-list", "GPUs are listed for instances that run elsewhere.", Core, Error, utils + "ValidateInstanceGroup"},
	{"instance/no-gpu", "Instances are meant for a GPU that the server does not have.", Core, Error, utils + "ValidateInstanceGroup"},
	{"instance/profile", "A profile is named for a model that has none.", Core, Error, utils + "ValidateInstanceGroup"},
	{"instance/none", "No instance group: the server chooses, and takes the CPU when it sees no GPU.", Ours, Note, utils + "NormalizeInstanceGroup"},
	{"instance/count", "A count of 0 is the same as none: the server takes its default.", Ours, Note, utils + "SetDefaultInstanceCount"},
	{"policy/absent", "The version policy names a version that is not there.", Ours, Error, lifecycle + "the version directory is not present: the others are loaded without failing"},
	{"policy/none", "The version policy serves nothing.", Core, Error, manager + "at least one version must be available"},
	{"warmup/sample", "A warm-up sample cannot be made.", Core, Error, "core: src/backend_model.cc, GenerateWarmupData"},
	{"warmup/input", "A warm-up sample does not fit the inputs.", Core, Error, "core: src/backend_model.cc"},
	{"ensemble/settings", "An ensemble has settings that only a model can have.", Core, Error, utils + "ValidateEnsembleSchedulingConfig"},
	{"ensemble/step", "A step of an ensemble is not complete.", Core, Error, utils + "BuildEnsembleGraph"},
	{"ensemble/flow", "Tensors of an ensemble do not connect.", Core, Error, utils + "ValidateEnsembleSchedulingConfig"},
	{"ensemble/model", "A step names a model that is not in the repository.", Core, Error, manager + "depends on model ... which are not available"},
	{"ensemble/mapping", "A step maps tensors that its model does not have.", Core, Error, "core: src/ensemble_scheduler/ensemble_utils.cc"},
	{"ensemble/shape", "Tensors of an ensemble have different types, shapes or batches.", Core, Error, "core: src/ensemble_scheduler/ensemble_utils.cc"},

	// What the native backends demand of the model file.
	{"model/unreadable", "The model file cannot be read.", ONNXRuntime, Error, ortSource + "LoadModel"},
	{"model/inputs", "Not all inputs of the model are declared.", ONNXRuntime, Error, ortSource + "ValidateInputs: configuration expects N inputs"},
	{"model/input-name", "An input is declared that the model does not have.", ONNXRuntime, Error, ortSource + "CheckAllowedModelInput"},
	{"model/output-name", "An output is declared that the model does not have.", ONNXRuntime, Error, ortSource + "CheckAllowedModelOutput"},
	{"model/data-type", "A type differs from the model's.", ONNXRuntime, Error, ortSource + "ValidateInputs: configuration expects datatype"},
	{"model/shape", "A shape differs from the model's.", ONNXRuntime, Error, "backend: src/backend_common.cc, CompareDimsSupported"},
	{"model/loose-shape", "A size is open here and fixed in the model.", Ours, Warning, "backend: src/backend_common.cc, CompareDimsSupported lets it load; requests of another size fail"},
	{"model/batch", "The model does not take batches, max_batch_size says that it does.", ONNXRuntime, Error, "backend: src/backend_common.cc, CompareDimsSupported: the first dimension must be -1"},
	{"model/optional", "Optional inputs are not possible with batching.", ONNXRuntime, Error, ortSource + "ValidateInputs"},
	{"model/control", "A sequence control is no input of the model.", ONNXRuntime, Error, ortSource + "ValidateBooleanSequenceControl"},
	{"model/default", "An input with a default is declared as required.", Ours, Note, ortSource + "OverridableInitializerNames"},
	{"plan/device", "A TensorRT plan cannot run on a CPU.", TensorRT, Error, "tensorrt_backend: src/model_state.cc, ValidateModelConfig: instance must be KIND_GPU"},
	{"plan/tensor", "A declaration differs from the plan's tensor.", TensorRT, Error, trtSource + "ValidateIO"},
	{"plan/batch", "max_batch_size is above the plan's profiles.", TensorRT, Error, trtSource + "InitializeBatchInputBindings"},
	{"plan/version", "The plan was built by another TensorRT than the server's.", TensorRT, Error, "TensorRT: a plan loads only in the release that built it"},
	{"plan/description", "The description beside the plan is damaged, or is not that of this plan.", Ours, Error, ""},
	{"plan/unknown", "Nothing says what is in the plan: it has no engine.json beside it.", Ours, Note, ""},
	{"model/state-dict", "The file holds weights without code: it is no TorchScript archive.", PyTorch, Error, "pytorch_backend: torch::jit::load"},
}

var byID = func() map[string]Rule {
	m := make(map[string]Rule, len(Rules))
	for _, r := range Rules {
		m[r.ID] = r
	}
	return m
}()

// RuleOf returns the rule of an id.
func RuleOf(id string) (Rule, bool) {
	r, ok := byID[id]
	return r, ok
}
