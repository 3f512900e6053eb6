package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/report"
)

// documentFile is the only file of an artifact of a report kind.
const documentFile = "report.json"

// IsDocument reports whether artifacts of a kind are documents of the report.
func IsDocument(kind artifact.Kind) bool { return strings.HasSuffix(string(kind), "-report") }

// documents puts what a stage measured into the report.
func (r *runner) documents(rep *report.Report, res *result) error {
	for _, a := range res.artifacts {
		if !IsDocument(a.Kind) {
			continue
		}
		text, err := regular.ReadFile(filepath.Join(a.Dir, documentFile))
		if err == nil {
			err = addDocument(rep, a.Kind, text)
		}
		if err != nil {
			return failure.New(failure.Artifact, "read %s of %s: %w", a.ID(), res.Name, err)
		}
	}
	return nil
}

// addDocument decodes one document. Its kind says which field it belongs to.
func addDocument(rep *report.Report, kind artifact.Kind, text []byte) error {
	switch kind {
	case artifact.InspectReport:
		return decodeInto(text, &rep.Inspection)
	case artifact.OptimizeReport:
		return decodeInto(text, &rep.Optimize)
	case artifact.BenchmarkReport:
		return decodeInto(text, &rep.Benchmark)
	case artifact.ValidateReport, artifact.OptimizedReport, artifact.PrecisionReport, artifact.EngineReport, artifact.ServedReport:
		return addValidations(rep, text)
	}
	return fmt.Errorf("no field of the report takes the kind %s", kind)
}

func decodeInto[T any](text []byte, field **T) error {
	v := new(T)
	if err := decodeStrict(text, v); err != nil {
		return err
	}
	*field = v
	return nil
}

// addValidations takes one validation, or a list with one for each precision.
func addValidations(rep *report.Report, text []byte) error {
	var list []report.Validation
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		if err := decodeStrict(text, &list); err != nil {
			return err
		}
	} else {
		list = make([]report.Validation, 1)
		if err := decodeStrict(text, &list[0]); err != nil {
			return err
		}
	}
	rep.Validations = append(rep.Validations, list...)
	return nil
}

func decodeStrict(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
