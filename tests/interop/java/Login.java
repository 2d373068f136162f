import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** The credentials of a command: access_key, secret_key and perhaps security_token. Whether clients use TLS is a setting of the JVM. */
final class Login {
    private Login() {
    }

    /** The hook that signs a client's requests, or null for a command without credentials. */
    static RPCHook hook(JSONObject command) {
        String accessKey = command.getString("access_key");
        if (accessKey == null) {
            return null;
        }
        return new AclClientRPCHook(
            new SessionCredentials(accessKey, command.getString("secret_key"), command.getString("security_token")));
    }

    /** A key for clients that are kept: the nameserver and the credentials. */
    static String key(JSONObject command) {
        return command.getString("namesrv") + " " + command.getString("access_key") + " " + command.getString("secret_key");
    }

    /** Signs requests that are described by their fields and body, and returns the fields as they would be sent. */
    static List<Map<String, String>> sign(JSONObject command) {
        RPCHook hook = hook(command);
        JSONArray requests = command.getJSONArray("requests");
        List<Map<String, String>> signed = new ArrayList<>(requests.size());
        for (int i = 0; i < requests.size(); i++) {
            JSONObject described = requests.getJSONObject(i);
            RemotingCommand request = RemotingCommand.createRequestCommand(described.getIntValue("code"), null);
            HashMap<String, String> fields = new HashMap<>();
            described.getJSONObject("fields").forEach((name, value) -> fields.put(name, (String) value));
            request.setExtFields(fields);
            if (described.getString("body") != null) {
                request.setBody(Base64.getDecoder().decode(described.getString("body")));
            }
            hook.doBeforeRequest("", request);
            signed.add(request.getExtFields());
        }
        return signed;
    }
}
