{{- define "sandq.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- define "sandq.selector" -}}
app.kubernetes.io/name: sandq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "sandq.labels" -}}
{{ include "sandq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
{{- define "sandq.seeds" -}}
{{- $name := include "sandq.name" . -}}
{{- $seeds := list -}}
{{- range until (min 3 (int .Values.replicas) | int) -}}
{{- $seeds = append $seeds (printf "%s-%d.%s-nodes:9900" $name . $name) -}}
{{- end -}}
{{- join "," $seeds -}}
{{- end -}}
{{- define "sandq.check" -}}
{{- if and (not .Values.tls.secretName) (not .Values.security.insecure) -}}
{{- fail "tls.secretName is empty: name a Secret with a certificate, or, in a private network, set security.insecure: true" -}}
{{- end -}}
{{- end -}}
